// Finds out which node of a cluster's file this process is, by where it runs. Used by `serve` and
// by embedded nodes.
#pragma once

#include <millrace/config/settings.hpp>

#include <string>
#include <string_view>

namespace millrace::config {

/// What the system and a job scheduler say about where a process runs. Empty: they say nothing.
struct surroundings {
  std::string host_name;
  std::string slurm_node_list; // SLURM_JOB_NODELIST, or its older name SLURM_NODELIST
  std::string slurm_node_name; // SLURMD_NODENAME
  std::string slurm_task;      // SLURM_PROCID
  std::string slurm_local;     // SLURM_LOCALID

  static surroundings of_this_process();
};

/// With `cluster.hosts: job`, gives hosts of the Slurm job to the nodes without a `host`, in the
/// order of both, so that nodes need not be named after hosts. Nodes are dealt out evenly; when
/// they do not divide, the first hosts get one more.
/// Errors:  `invalid_argument` for a malformed list of hosts, for more nodes on a host than ports,
///          and outside of a job if the address of a node depends on it.
result<settings> place_in_job(settings all, const surroundings& here);

/// Picks the settings of one node. The first rule that gives a node decides:
/// 1. The node called `name`; without a name, the only node of the file.
/// 2. The node whose name or `host` is this host; then one on the host that Slurm names
///    (SLURMD_NODENAME). Domains are left out only if no node matches otherwise. Of several nodes
///    on the host it is the SLURM_LOCALID-th.
/// 3. The node whose number in the file is that of this host in the job's list. If the job has
///    fewer hosts than the file has nodes, the number is SLURM_PROCID.
/// Errors:  `invalid_argument` that lists the names.
result<settings> pick_node(const settings& all, std::string_view name, const surroundings& here);

} // namespace millrace::config
