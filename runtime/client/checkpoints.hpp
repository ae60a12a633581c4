// Checkpoints seen from outside a training job: list, verify, load, remove, repack.
// Called by programs and by the command line.
#pragma once

#include <millrace/core/checkpoint.hpp>
#include <millrace/core/checkpoint_receipts.hpp>
#include <millrace/core/future.hpp>
#include <millrace/core/receipts.hpp>
#include <millrace/core/repack_report.hpp>
#include <millrace/core/status.hpp>
#include <millrace/core/tensor_view.hpp>
#include <millrace/runtime/client/listed.hpp>
#include <millrace/runtime/client/load_target.hpp>

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

struct global_load_options {
  std::optional<std::uint64_t> step = {}; // empty: the newest complete one
  std::chrono::milliseconds timeout{0};   // of the whole load; 0: the client's request timeout
};

/// The answer to a load from all shards of a step.
struct global_load_receipt {
  std::string model;
  std::uint64_t step = 0;
  std::uint64_t size_bytes = 0;     // what was loaded
  std::vector<std::uint32_t> ranks; // whose shards were read, ascending
  std::vector<std::string> drivers; // those that moved the bytes, each once
  bool verified = false;            // checksums were stored and matched
  std::string provider;

  friend bool operator==(const global_load_receipt&, const global_load_receipt&) = default;
};

/// The checkpoints kept by a group of providers; an empty group means every provider that keeps
/// some.
///
/// One provider keeps all shards of a model, and every client computes the same one from the name.
/// If the list of providers has changed since the first save, another provider may have the model.
/// So a client asks some nodes which providers there are, asks all of these, and takes the one with
/// the latest save. If one cannot be asked, the call fails with the reason, since that one may have
/// newer steps. It goes on, with a warning in the log, if another provider has the complete step
/// that is named or, without a step, has the latest save of those asked and a job registered. A
/// provider that was taken out of the file of every node keeps its checkpoints, and is not asked.
/// Errors:  common to all calls: `not_found` when no provider keeps checkpoints; `peer_lost` and
///          `unavailable` naming the provider; `deadline_exceeded`.
/// Time:    each call but `repack` ends by its timeout, whatever providers do; those without one
///          have the client's request timeout. It bounds all that the call asks for.
/// Threads: any.
class checkpoints {
public:
  checkpoints(std::shared_ptr<runtime::client_core> core, std::string group);

  /// Lists the models whose names start with `prefix`, from every provider. Providers that do not
  /// answer are named in the result.
  /// Errors:  that of the first provider when none answers.
  future<listed<checkpoint_summary>> list(const std::string& prefix = {});
  /// Returns a model's shards, versions and complete steps. `step` picks the provider that has it,
  /// if several have the model.
  /// Errors:  `not_found`.
  future<checkpoint_summary> describe(
    const std::string& model, std::optional<std::uint64_t> step = {});
  /// Waits for a complete step of a model above `than`; empty: for any. It is ready at once if
  /// there is one, and the model need not exist. The result is that of `describe`, from the
  /// provider that has the step.
  ///
  /// It waits at all providers that may keep the model, as the nodes list them when it begins; one
  /// that cannot be asked is named in the log, and fails it only if no other is left. Cancelling
  /// the future takes the watch back from the providers, and so does dropping the client with all
  /// that was made by it: the wait alone does not keep them.
  /// Time:    at most `limits.request_timeout_max`; 0: the client's request timeout.
  /// Errors:  `cancelled` when the client is dropped; `busy` naming `limits.watches_max`;
  ///          `unsupported` from a provider of an older version.
  future<checkpoint_summary> newer(
    const std::string& model, std::optional<std::uint64_t> than = {},
    std::chrono::milliseconds timeout = {});

  /// Returns the tensors, axes and metadata with which one shard was registered. `step`: as above.
  /// Errors:  `not_found`.
  future<shard_spec> describe_shard(
    const std::string& model, std::uint32_t rank, std::optional<std::uint64_t> step = {});

  /// Writes tensors of a shard's version to the views' memory, and returns the user's bytes of the
  /// version as the receipt's `extra`. Without a step it takes the newest complete one.
  /// Errors:  those of `checkpointer::restore`.
  future<load_receipt> load(
    const std::string& model, std::uint32_t rank, std::optional<std::uint64_t> step,
    std::vector<tensor_view> targets, std::chrono::milliseconds timeout = {});

  /// Does what `load` does, for tensors, rows and boxes of them.
  /// Errors:  as `load`; those of `repository::load` for boxes.
  future<load_receipt> load_boxes(
    const std::string& model, std::uint32_t rank, std::optional<std::uint64_t> step,
    std::vector<load_target> targets, std::chrono::milliseconds timeout = {});

  /// Loads tensors of the model, wherever its shards have them, in one step that is complete. So a
  /// job of another world size, or with other parallel axes, finds its parts.
  ///
  /// A target names a tensor of the model, and the box, the rows or the whole of it that is wanted,
  /// in the indices of its global shape. The places that the shards were registered with say where
  /// its parts are, see `checkpoint_options::places`. A shard's tensor without a place is the
  /// whole one. Where several shards have the same elements, those of the lowest rank are read.
  /// Several shards are read at a time, without the user's bytes of their versions. After an error
  /// or a cancellation no byte moves any more; the targets are then undefined.
  /// Errors:  `not_found` for a model, a step that is not complete, a tensor, or a box of it, that
  ///          no shard has, named; `invalid_argument` for another dtype or shape, a box outside of
  ///          the tensor, or shards that differ in the dtype or the global shape, named;
  ///          `unsupported` for elements smaller than a byte of which a part would have gaps;
  ///          `unavailable` when the step was saved again or overwritten meanwhile; those of
  ///          `load_boxes`.
  future<global_load_receipt> load_global(
    const std::string& model, std::vector<load_target> targets,
    const global_load_options& options = {});

  /// Reads a version again at the provider and names the tensors whose checksums do not match.
  /// `saved_at_ns` picks one of several versions of the step by its time, as `describe` returns it;
  /// 0 picks the version that a restore would take.
  /// Errors:  `not_found`.
  future<verify_receipt> verify(
    const std::string& model, std::uint32_t rank, std::uint64_t step,
    std::chrono::milliseconds timeout = {}, std::uint64_t saved_at_ns = 0);

  /// Removes a model, or one step of it.
  /// Errors:  `not_found`; `busy` while a job is attached.
  future<void> erase(const std::string& model, std::optional<std::uint64_t> step = {});

  /// Reclaims what finished and dead jobs left, in every provider. Returns the name of each
  /// provider and what was done there. A repack that is about to run out of time stops where it is
  /// and says so.
  future<std::vector<result<std::pair<std::string, repack_report>>>> repack(
    std::chrono::milliseconds timeout = {});

private:
  std::shared_ptr<runtime::client_core> core_;
  std::string group_;
};

} // namespace millrace
