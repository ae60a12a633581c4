// Single requests to a provider's checkpoints.
// Internal, used by `checkpoints` and `shard_state`; needs CAF.
#pragma once

#include <millrace/core/tensor_view.hpp>
#include <millrace/runtime/client/calls/caller.hpp>
#include <millrace/runtime/client/calls/load_call.hpp>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace millrace::runtime {

template <class Request, class Reply = actors::reply_of<Request>>
future<Reply> ask_checkpoints(
  const std::shared_ptr<client_core>& core, std::size_t provider, Request request) {
  auto done = core->make_promise<Reply>();
  core->ask<actors::checkpoint_manager_actor, Request, Reply>(
    core->checkpoints(provider), std::move(request),
    [core, done](result<Reply> r) { done.set(std::move(r)); });
  return done.get_future();
}

/// Finds the provider that keeps a model's checkpoints. This is the provider in which the name is
/// placed, unless another one of the group has the model from before the list of providers changed.
/// If none has it, this is the placed one.
/// Errors:  `not_found` saying how to configure one; the reason why a provider could not be asked,
///          if it may be the one.
void find_keeper(
  const std::shared_ptr<client_core>& core, const std::string& group, const std::string& model,
  completion<std::size_t> done);

/// Returns a model's shards, versions and complete steps as they are now.
/// Errors:  `not_found`.
future<checkpoint_summary> describe_checkpoints(
  const std::shared_ptr<client_core>& core, std::size_t provider, const std::string& model);

/// Returns the layout and metadata with which a shard was registered.
/// Errors:  `not_found`; `protocol_error` for an inconsistent one.
future<shard_spec> describe_shard(
  const std::shared_ptr<client_core>& core, std::size_t provider, const std::string& model,
  std::uint32_t rank);

/// Writes tensors of a version to the views' memory. Without a step it takes the newest complete
/// one.
void restore_into(
  const std::shared_ptr<load_call>& call, const std::shared_ptr<client_core>& core,
  std::size_t provider, const std::string& model, std::uint32_t rank,
  std::optional<std::uint64_t> step, std::vector<tensor_view> targets,
  std::chrono::milliseconds timeout);

} // namespace millrace::runtime
