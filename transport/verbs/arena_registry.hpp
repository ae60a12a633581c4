// The arenas and adopted mappings of this process, registered once each. Asked for the local side of transfers.
#pragma once

#include <millrace/transport/arena.hpp>
#include <millrace/transport/verbs/registered_memory.hpp>

#include <condition_variable>
#include <map>
#include <mutex>

namespace millrace::transport::verbs {

/// Threads: any.
class arena_registry {
public:
  explicit arena_registry(device_list devices) : devices_(std::move(devices)) {}

  /// What is registered already, without blocking; null if it is not. Errors: the remembered `unsupported`.
  result<std::shared_ptr<registered_memory>> find(const arena& a) const;
  /// Registers it, if nobody has. Blocks.
  /// Errors: `unsupported` for a file that is neither on tmpfs nor a DAX device: others write pages back on their
  /// own, and would not see what a device changed; and for what a device refuses.
  result<std::shared_ptr<registered_memory>> add(const std::shared_ptr<arena>& a);
  /// Lets go of arenas that are gone.
  void sweep();

private:
  struct entry {
    std::weak_ptr<arena> what;
    bool making = false;
    result<std::shared_ptr<registered_memory>> made;
  };

  device_list devices_;
  mutable std::mutex mutex_;
  std::condition_variable made_;
  std::map<std::uint64_t, entry> entries_; // by the arena's id
};

} // namespace millrace::transport::verbs
