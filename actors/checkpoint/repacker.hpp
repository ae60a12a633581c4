// Runs repacks of one store, one at a time, on command or when space is low. Owned by the
// checkpoint manager.
#pragma once

#include <millrace/actors/checkpoint/checkpoint_messages.hpp>
#include <millrace/actors/operation.hpp>
#include <millrace/storage/checkpoint_store.hpp>

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

namespace millrace::actors {

/// When to repack without a command.
struct repack_policy {
  bool when_low = false;            // when a registration finds no room, or less than this is free
  std::uint32_t below_percent = 10; // percent of the capacity
};

/// Runs repacks. It is used inside one actor; the repack itself runs on threads of the store.
class repacker {
public:
  repacker(
    std::shared_ptr<operation_context> context, std::shared_ptr<storage::checkpoint_store> store,
    const repack_policy& policy)
    : context_(std::move(context)), store_(std::move(store)), policy_(policy) {}

  /// Begins a repack, or joins the one that runs. A repack that this call begins stops at
  /// `deadline`.
  void run(completion<repack_report> done, std::optional<time_point> deadline = std::nullopt);
  /// Begins a repack if the policy says so.
  void run_if_low();
  /// Does the same after a job has gone. The space that the job leaves may be freed, whatever the
  /// last repack found.
  void run_if_low_again();
  /// Stops the running repack and ends every `done` that waits with `why`. Called when the actor
  /// ends, and then nothing else is.
  void stop(const status& why);

private:
  void finish(const result<repack_report>& outcome);

  std::shared_ptr<operation_context> context_;
  std::shared_ptr<storage::checkpoint_store> store_;
  repack_policy policy_;
  std::vector<completion<repack_report>> waiting_;
  std::shared_ptr<std::atomic<bool>> stopped_; // stops the running repack; null when none runs
  bool again_ = false;                         // a job has left since that repack began
  std::uint64_t low_at_bytes_ = 0;             // used bytes after the last repack for lack of space
};

} // namespace millrace::actors
