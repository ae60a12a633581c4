// A program's connection to Millrace: to a node in this process, or to others by address.
#pragma once

#include <millrace/actors/node/node_messages.hpp>
#include <millrace/config/settings.hpp>
#include <millrace/runtime/client/checkpointer.hpp>
#include <millrace/runtime/client/checkpoints.hpp>
#include <millrace/runtime/client/repository.hpp>

#include <memory>
#include <string>
#include <vector>

namespace millrace {

/// Copies share the connection; the last one closes it: what is under way ends with `cancelled`. Closing never
/// waits for a peer. Threads: any.
class client {
public:
  /// Connects to a node and learns from it where the cluster's providers are.
  /// Errors: `unavailable`, `permission_denied`, `unsupported_version`, `deadline_exceeded`; each names the address.
  static result<client> open(const std::string& address, const config::settings& settings = {});

  /// As `open`; throws `millrace::error`.
  static client connect(const std::string& address, const config::settings& settings = {});

  /// A client of every node a configuration describes. Connects when first needed, so nodes may be down.
  static result<client> of(const config::settings& settings);

  explicit client(std::shared_ptr<runtime::client_core> core) : core_(std::move(core)) {}

  /// The repository kept by the providers of a group.
  class repository repository(const std::string& group = "default") const;

  /// Registers a shard of a training job: all of its memory, readable while the checkpointer lives.
  ///
  /// The tensors must outlive the checkpointer, at their addresses; they may be dense or strided.
  /// Errors: `invalid_argument` (options, tensors, or another layout under the name), `no_space`, `busy` while another
  /// job saves this shard, `not_found` when no provider keeps checkpoints.
  future<class checkpointer> checkpointer(
    const checkpoint_options& options, std::vector<tensor_view> tensors) const;

  /// Checkpoints as they are kept by a group of providers; by all that keep some, without one.
  class checkpoints checkpoints(const std::string& group = {}) const;

  /// Providers of the cluster.
  std::vector<actors::provider_entry> providers() const;

  /// Nodes of the cluster, in the order of its configuration.
  std::vector<actors::node_entry> nodes() const;

  /// How each node of the cluster stands, in the order of `nodes`; an error for one that does not answer within
  /// `client.request_timeout`. All are asked at once.
  future<std::vector<result<actors::node_status>>> status() const;

  /// Tells that memory which was stored from, loaded into or registered was unmapped, or will be: what is kept of it
  /// for later transfers (registrations with RDMA devices) is let go, except under what is in use. A hint that frees
  /// pinned pages early: without it they go when the kernel says that the memory is gone.
  void invalidate(const void* data, std::uint64_t size_bytes) const;

private:
  std::shared_ptr<runtime::client_core> core_;
};

} // namespace millrace
