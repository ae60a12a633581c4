// A program's connection to Millrace: to a node in this process, or to others by address.
// Every program begins here.
#pragma once

#include <millrace/config/settings.hpp>
#include <millrace/core/cluster_entries.hpp>
#include <millrace/core/future.hpp>
#include <millrace/core/node_status.hpp>
#include <millrace/core/status.hpp>
#include <millrace/core/tensor_view.hpp>
#include <millrace/runtime/client/checkpointer.hpp>
#include <millrace/runtime/client/checkpoints.hpp>
#include <millrace/runtime/client/repository.hpp>
#include <millrace/runtime/client/stream.hpp>
#include <millrace/runtime/client/working_set.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace millrace {

class broadcast_group;
struct group_options;
class weights;

/// Gives access to repositories, checkpoints and the state of the cluster.
///
/// Copies share the connection. The last copy closes it: operations in flight end with `cancelled`,
/// and closing never waits for a peer.
///
/// In a forked child the client, and what was made by it, still belong to the parent: each call
/// there gives `unavailable` at once, and destroying them closes nothing. The child opens a client
/// of its own.
/// Threads: any.
class client {
public:
  /// Connects to a node and learns from it where the cluster's providers are. While the node says
  /// that it is starting, it is asked again, for `client.connect_timeout` in all.
  /// Errors:  `unavailable`, `permission_denied`, `unsupported_version`, `deadline_exceeded`; each
  ///          names the address.
  static result<client> open(const std::string& address, const config::settings& settings = {});

  /// Does what `open` does, and returns before the node has answered.
  static future<client> open_async(
    const std::string& address, const config::settings& settings = {});

  /// Does what `open` does, but throws `millrace::error`.
  static client connect(const std::string& address, const config::settings& settings = {});

  /// Returns a client of all nodes of a configuration. It connects when first needed, so nodes may
  /// be down.
  /// Errors:  that of the first setting that cannot be used: an unknown user, an unreadable TLS
  ///          file, an option of a driver that does not fit the machine.
  static result<client> of(const config::settings& settings);

  explicit client(std::shared_ptr<runtime::client_core> core) : core_(std::move(core)) {}

  /// Returns the repository that the providers of a group keep.
  class repository repository(const std::string& group = "default") const;

  /// Registers a shard of a training job. All of its memory stays readable while the checkpointer
  /// lives.
  ///
  /// The tensors must outlive the checkpointer at their addresses, unless `rebind` says that they
  /// have moved. They may be dense or strided.
  /// Errors:  `invalid_argument` (options, tensors, or another layout under the name); `no_space`;
  ///          `busy` while another job saves this shard; `not_found` when no provider keeps
  ///          checkpoints; `unavailable` naming a provider that may have newer steps and cannot be
  ///          asked; `peer_lost`; `deadline_exceeded`.
  future<class checkpointer> checkpointer(
    const checkpoint_options& options, std::vector<tensor_view> tensors) const;

  /// Returns the checkpoints that a group of providers keeps; an empty group means every provider
  /// that keeps some.
  class checkpoints checkpoints(const std::string& group = {}) const;

  /// Returns the working set of a name, which need not exist.
  class working_set working_set(const std::string& name) const;
  /// Lists the working sets whose names start with `prefix`, from every node that keeps some. In
  /// the result, `provider` is the name of the node. Nodes that do not answer are named.
  /// Errors:  `not_found` when no node has a data server; that of the first node when none answers.
  future<listed<set_info>> working_sets(const std::string& prefix = {}) const;

  /// Returns the streaming set of a name, which need not exist.
  class stream stream(const std::string& name) const;
  /// Lists the streams whose names start with `prefix`. As `working_sets`.
  future<listed<stream_status>> streams(const std::string& prefix = {}) const;

  /// Returns the weights of a name, which publishers replace and others follow; include
  /// `weights.hpp`. `group`: the providers that keep them.
  class weights weights(const std::string& name, const std::string& group = "default") const;

  /// Joins a group of processes that broadcast to each other; include `broadcast_group.hpp`. The
  /// future is ready when all of its members have joined.
  /// Errors:  `invalid_argument` for another size than that of the others, and for a rank that
  ///          there is not; `already_exists` naming the process that has the rank;
  ///          `permission_denied` for a group of another user; `deadline_exceeded` naming the ranks
  ///          that did not come; `busy` when groups have all of `groups.memory`; `unsupported` for
  ///          a node on another host; `unavailable`.
  future<broadcast_group> join_group(const std::string& name, const group_options& options) const;

  /// Returns the providers of the cluster.
  std::vector<provider_entry> providers() const;

  /// Returns the nodes of the cluster, in the order of its configuration.
  std::vector<node_entry> nodes() const;

  /// Returns the status of each node of the cluster, in the order of `nodes`. A node that does not
  /// answer within `client.request_timeout` gives an error. All nodes are asked at once.
  future<std::vector<result<node_status>>> status() const;

  /// Says that memory was unmapped, or is about to be unmapped. The client then drops the RDMA
  /// registrations of it that it keeps for later transfers, except those in use. The call is a hint
  /// that frees pinned pages early: without it they are freed when the kernel reports the
  /// unmapping.
  void invalidate(const void* data, std::uint64_t size_bytes) const;

private:
  std::shared_ptr<runtime::client_core> core_;
};

} // namespace millrace
