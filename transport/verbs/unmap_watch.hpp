// Learns from the kernel when memory of this process is unmapped.
// Used by the registration cache.
#pragma once

#include <millrace/net/socket/unique_fd.hpp>
#include <millrace/transport/verbs/registration_cache.hpp>

#include <array>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace millrace::transport::verbs {

/// Returns true if the kernel lets this process watch (userfaultfd with events).
bool can_watch_unmaps() noexcept;

/// Watches ranges by userfaultfd: its thread reads the events UNMAP, REMOVE and REMAP. The kernel
/// still handles page faults: the ranges are registered for write protection only, and none is ever
/// protected.
///
/// A thread that unmaps memory waits until the event was read. From then on `take` returns it, so
/// code that runs after the unmapping sees it. Neither this thread nor `take` allocates or frees
/// while the events are locked: that could unmap memory and would wait for itself.
class unmap_watch {
public:
  /// Returns null where the kernel does not permit it; nothing is watched then.
  static std::unique_ptr<unmap_watch> open();
  ~unmap_watch();

  /// Returns false for memory whose unmapping the kernel does not report, such as mappings of
  /// ordinary files.
  bool watch(const memory_range& where) noexcept;
  void unwatch(const memory_range& where) noexcept;
  /// Appends the ranges unmapped since the last call.
  void take(std::vector<memory_range>& out);

private:
  static constexpr std::size_t kept_max = 256;

  unmap_watch() = default;
  void serve() noexcept;
  void read_one() noexcept;
  void keep(std::uint64_t first, std::uint64_t last) noexcept;

  net::unique_fd fd_;
  net::unique_fd stop_;
  std::mutex mutex_;
  std::array<memory_range, kept_max> kept_{};
  std::size_t count_ = 0;
  std::thread thread_;
};

} // namespace millrace::transport::verbs
