// The arenas and adopted mappings of this process, each registered once with the devices.
// Used by the driver for the local side of transfers.
#pragma once

#include <millrace/core/clock.hpp>
#include <millrace/transport/memory/arena.hpp>
#include <millrace/transport/verbs/registered_memory.hpp>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>

namespace millrace::transport::verbs {

/// Registers arenas and finds their registrations. Threads: any.
class arena_registry {
public:
  using maker = std::function<result<std::shared_ptr<registered_memory>>(const arena&)>;
  /// `make` registers an arena. A failure for lack of memory is retried after `retry_after`.
  arena_registry(maker make, std::chrono::milliseconds retry_after)
    : make_(std::move(make)), retry_after_(retry_after) {}

  /// Returns the registration without blocking; null if there is none, or if a failure may be
  /// retried.
  /// Errors:  the remembered `unsupported`.
  result<std::shared_ptr<registered_memory>> find(const arena& a) const;
  /// Registers an arena unless it is registered. Blocks.
  /// Errors:  `unsupported`, whatever the reason, since nothing has moved and other drivers need no
  ///          registration.
  result<std::shared_ptr<registered_memory>> add(const std::shared_ptr<arena>& a);
  /// Drops the registrations of arenas that are gone.
  void sweep();

private:
  struct entry {
    std::weak_ptr<arena> what;
    bool making = false;
    result<std::shared_ptr<registered_memory>> made;
    time_point failed_until = time_point::max(); // when a failure may be retried

    bool is_settled() const { return made ? *made != nullptr : steady_clock::now() < failed_until; }
  };
  void settle(entry& mine, result<std::shared_ptr<registered_memory>> made);

  const maker make_;
  const std::chrono::milliseconds retry_after_;
  mutable std::mutex mutex_;
  std::condition_variable made_;
  std::map<std::uint64_t, entry> entries_; // by the arena's id
  bool lack_told_ = false;
};

/// Returns a function that registers whole arenas with these devices.
/// Errors:  those of `registered_memory::add`; `unsupported` for a file that is neither on tmpfs
///          nor a DAX device, since other file systems write pages back on their own and would miss
///          what a device changed.
arena_registry::maker registering_with(device_list devices);

} // namespace millrace::transport::verbs
