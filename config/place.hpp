// Which node of a cluster's file this process is, from where it runs. Used by `millrace serve` and embedded nodes.
#pragma once

#include <millrace/config/settings.hpp>

#include <string>
#include <string_view>

namespace millrace::config {

/// What the system and a job scheduler say of where a process runs. Empty: nothing.
struct surroundings {
  std::string host_name;
  std::string slurm_node_list; // SLURM_JOB_NODELIST, or its older name SLURM_NODELIST
  std::string slurm_node_name; // SLURMD_NODENAME
  std::string slurm_task;      // SLURM_PROCID
  std::string slurm_local;     // SLURM_LOCALID

  static surroundings of_this_process();
};

/// With `cluster.hosts: job`, gives the nodes that have no `host` the hosts of the Slurm job, in the order of both, so
/// that their names need not be those of hosts. Nodes are dealt out evenly; when they do not divide, the first hosts get
/// one more.
/// Errors: `invalid_argument` for a list of hosts that is none, more nodes on a host than ports, and outside of a job
/// where an address depends on it.
result<settings> place_in_job(settings all, const surroundings& here);

/// The settings of one node. In this order: the node called `name`; the only one there is; the one on this host, by
/// name or `host`, domains left out where only that helps (of several the SLURM_LOCALID-th); the one on the host that
/// Slurm says this is; the one whose number in the file is that of this host among the job's, or, where the job has
/// fewer hosts than there are nodes, SLURM_PROCID.
/// Errors: `invalid_argument` that lists the names.
result<settings> pick_node(const settings& all, std::string_view name, const surroundings& here);

} // namespace millrace::config
