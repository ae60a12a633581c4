// Which node of a cluster's file this process is, from where it runs. Used by `millrace serve` and embedded nodes.
#pragma once

#include <millrace/config/settings.hpp>

#include <functional>
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

  /// Whether the name of a host means an address; null: every one does.
  std::function<bool(const std::string&)> can_look_up = {};

  static surroundings of_this_process();
};

/// Gives the nodes that have no `host` the hosts of the Slurm job, in the order of both, so that their names need not
/// be those of hosts: each host as many nodes as the others, of too few for that the first ones one more.
///
/// With `cluster.hosts: job` always; with `auto` in a job that can only be meant: there is `security`, no node says an
/// address or a host, and none of their names is that of a host of the job, or (of the first few) of any other. Else
/// does nothing.
/// Errors: `invalid_argument` for a list of hosts that is none, more nodes on a host than ports, and for `job`
/// outside a job where an address depends on it.
result<settings> place_in_job(settings all, const surroundings& here);

/// The settings of one node. In this order: the node called `name`; the only one there is; the one on this host, by
/// name or `host`, domains left out where only that helps (of several the SLURM_LOCALID-th); the one on the host that
/// Slurm says this is; the one whose number in the file is that of this host among the job's, or, where the job has
/// fewer hosts than there are nodes, SLURM_PROCID.
/// Errors: `invalid_argument` that lists the names.
result<settings> pick_node(const settings& all, std::string_view name, const surroundings& here);

} // namespace millrace::config
