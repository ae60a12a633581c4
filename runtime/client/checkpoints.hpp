// Checkpoints from outside a training job: listed, verified, loaded, cared for. Used by the command line.
#pragma once

#include <millrace/actors/checkpoint/checkpoint_messages.hpp>
#include <millrace/core/future.hpp>
#include <millrace/core/tensor_view.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace millrace {

namespace runtime {
class client_core;
}

/// The checkpoints kept by a group of providers; by all that keep some, when the group is empty.
///
/// A model's shards all rest in one provider, the same for every client: the one in which its name is placed, or, when
/// it came there before the list of providers changed, the one that has it. Of several the one saved to last.
/// Errors common to all: `not_found` when no provider keeps checkpoints; `peer_lost` and `unavailable` naming the
/// provider's address; `deadline_exceeded`.
/// Threads: any.
class checkpoints {
public:
  checkpoints(std::shared_ptr<runtime::client_core> core, std::string group);

  /// Models whose names start with `prefix`, of every provider, sorted.
  future<std::vector<checkpoint_summary>> list(const std::string& prefix = {});
  /// Errors: `not_found`.
  future<checkpoint_summary> describe(const std::string& model);
  /// What one shard was registered as: its tensors, axes and metadata. Errors: `not_found`.
  future<shard_spec> describe_shard(const std::string& model, std::uint32_t rank);

  /// Writes tensors of a shard's version (without a step: of the newest complete one) to where the views point.
  /// Errors: as of `checkpointer::restore`.
  future<actors::load_receipt> load(
    const std::string& model, std::uint32_t rank, std::optional<std::uint64_t> step,
    std::vector<tensor_view> targets, std::chrono::milliseconds timeout = {});

  /// Reads a version again where it rests and names the tensors whose checksums do not match. `saved_at_ns`: of several
  /// versions of the step the one with this time, as `describe` tells; 0: the one that a restore would take.
  /// Errors: `not_found`.
  future<actors::verify_receipt> verify(
    const std::string& model, std::uint32_t rank, std::uint64_t step,
    std::chrono::milliseconds timeout = {}, std::uint64_t saved_at_ns = 0);

  /// Removes a model, or one step of it. Errors: `not_found`; `busy` while a job is attached.
  future<void> erase(const std::string& model, std::optional<std::uint64_t> step = {});

  /// Reclaims what finished and dead jobs left, in every provider: its name and what was done there. When the time is
  /// nearly over it stops where it is, and says so.
  future<std::vector<result<std::pair<std::string, actors::repack_receipt>>>> repack(
    std::chrono::milliseconds timeout = {});

private:
  std::shared_ptr<runtime::client_core> core_;
  std::string group_;
};

} // namespace millrace
