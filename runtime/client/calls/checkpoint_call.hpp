// Single requests to a provider's checkpoints.
// Internal, used by `checkpoints` and `shard_state`; needs CAF.
#pragma once

#include <millrace/actors/checkpoint/checkpoint_messages.hpp>
#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/client/calls/load_call.hpp>
#include <millrace/runtime/client/load_target.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace millrace::runtime {

/// The providers that may keep checkpoints of a model, as the client's file and the nodes list
/// them.
struct keepers {
  std::size_t placed = 0; // a new model's
  std::vector<std::size_t> asked;
};

/// Finds the providers of a group that may keep checkpoints of a model. Asking nodes for them takes
/// at most half of the time until the deadline.
/// Errors:  `not_found` saying how to configure one.
void find_keepers(
  const std::shared_ptr<client_core>& core, const std::string& group, const std::string& model,
  time_point deadline, completion<keepers> done);

/// Finds the provider that keeps a model's checkpoints: the one to which it was saved last, among
/// those that have most of `step`, if it is given. Several have the model when the list of
/// providers changed. If no provider has it, the result is the one that the name is placed at. It
/// leaves out a provider that cannot be asked by the deadline, with a warning in the log, if
/// another one has `step` complete or, without a step, is the one found and has a job registered.
/// Errors:  those of `find_keepers`; the reason why a provider could not be asked that may have the
///          model, the step, or newer steps.
void find_keeper(
  const std::shared_ptr<client_core>& core, const std::string& group, const std::string& model,
  std::optional<std::uint64_t> step, time_point deadline, completion<std::size_t> done);

/// Returns when a model was last saved; 0 before its first version is done.
std::uint64_t saved_last_ns(const checkpoint_summary& model);

/// The ranks that have a step. Slots that are being filled do not count.
enum class step_part : std::uint8_t { none, some, all };
step_part part_of(const checkpoint_summary& model, std::uint64_t step);

/// Returns a model's shards, versions and complete steps as they are now.
/// Errors:  `not_found`.
future<checkpoint_summary> describe_checkpoints(
  const std::shared_ptr<client_core>& core, std::size_t provider, const std::string& model,
  time_point deadline);

/// Does so at each of these providers. The outcomes are in their order.
future<std::vector<result<checkpoint_summary>>> describe_everywhere(
  const std::shared_ptr<client_core>& core, const std::vector<std::size_t>& providers,
  const std::string& model, time_point deadline);

/// Returns the layout and metadata with which a shard was registered.
/// Errors:  `not_found`; `protocol_error` for a layout that is inconsistent.
future<shard_spec> describe_shard(
  const std::shared_ptr<client_core>& core, std::size_t provider, const std::string& model,
  std::uint32_t rank, time_point deadline);

/// Whether a restore also reads the user's bytes of the version.
enum class with_extra : bool { no, yes };

/// Writes tensors of a version, or parts of them, to the targets' memory. Reads the user's bytes of
/// the version if they are wanted. Without a step it takes the newest complete one.
void restore_into(
  const std::shared_ptr<load_call>& call, const std::shared_ptr<client_core>& core,
  std::size_t provider, const std::string& model, std::uint32_t rank,
  std::optional<std::uint64_t> step, std::vector<load_target> targets, time_point deadline,
  with_extra extra = with_extra::yes);

} // namespace millrace::runtime
