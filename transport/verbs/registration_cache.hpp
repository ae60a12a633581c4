// Caches registrations of memory that Millrace does not own.
// Used when a region is granted to a peer.
#pragma once

#include <millrace/core/status.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace millrace::transport::verbs {

struct memory_range {
  std::byte* data = nullptr;
  std::uint64_t size_bytes = 0;

  bool covers(const memory_range& other) const noexcept {
    return other.data >= data && other.data + other.size_bytes <= data + size_bytes;
  }
  bool overlaps(const memory_range& other) const noexcept {
    return data < other.data + other.size_bytes && other.data < data + size_bytes;
  }
};

/// Keeps registrations of whole pages, and drops the least recently used first.
///
/// *Problem*: pinning a page costs more than moving it, and a trainer exposes the same tensors at
/// every step. But when memory is unmapped and mapped again, its old registration refers to pages
/// that are no longer in use. So a registration is kept after its last user only where the kernel
/// reports unmapping (`watch` returned true). Elsewhere it ends with its last user, who promises
/// that the memory lives as long. `invalidate` is for changes that the kernel does not report.
///
/// Threads: any. Made by `make_shared` only, since the registrations that it lends hold it.
class registration_cache : public std::enable_shared_from_this<registration_cache> {
public:
  struct bounds {
    std::uint32_t entries_max = 0;
    std::uint64_t bytes_max = 0;
  };
  /// The functions that the cache calls; tests replace them. `unmapped` appends the ranges unmapped
  /// since the last call, and runs under the cache's lock.
  struct hooks {
    std::function<result<std::shared_ptr<void>>(const memory_range&)> make;
    std::function<bool(const memory_range&)> watch;
    std::function<void(const memory_range&)> unwatch;
    std::function<void(std::vector<memory_range>&)> unmapped;
  };

  registration_cache(const bounds& most, hooks h);

  /// Returns a registration that covers `[data, data + size_bytes)`, in use until the pointer goes.
  /// Blocks while pages are pinned.
  /// Errors:  those of `make`; `no_space` when the registrations in use leave no room.
  result<std::shared_ptr<void>> acquire(std::byte* data, std::uint64_t size_bytes);
  /// Makes later calls of `acquire` ignore registrations that touch the range. Registrations in use
  /// stay until they are released.
  void invalidate(const std::byte* data, std::uint64_t size_bytes);
  /// Drops the registrations of memory that was unmapped meanwhile.
  void sweep();

  std::uint64_t entries() const;
  std::uint64_t bytes() const;

private:
  struct entry {
    memory_range where;
    std::shared_ptr<void> value;
    std::uint32_t users = 0;
    bool watched = false;
    bool valid = true;
    std::uint64_t used_at = 0;
  };
  using entry_ptr = std::shared_ptr<entry>;

  void note_unmapped();
  void invalidate_locked(const memory_range& gone);
  template <class F>
  entry_ptr first_touching(const memory_range& where, F wanted);
  void drop_invalid(std::vector<entry_ptr>& dropped);
  entry_ptr find(const memory_range& where);
  status make_room(std::uint64_t size_bytes, std::vector<entry_ptr>& dropped);
  std::shared_ptr<void> lend(const entry_ptr& e);
  void give_back(const entry_ptr& e);
  void remove_locked(entry_ptr e, std::vector<entry_ptr>& dropped);

  const bounds most_;
  const hooks hooks_;
  mutable std::mutex mutex_;
  std::multimap<const std::byte*, entry_ptr> entries_; // by their first byte
  std::uint64_t longest_bytes_ = 0;                    // no entry is longer
  std::map<std::uint64_t, entry_ptr> idle_;            // by their last use
  std::uint64_t bytes_ = 0;
  std::uint64_t clock_ = 0;
};

} // namespace millrace::transport::verbs
