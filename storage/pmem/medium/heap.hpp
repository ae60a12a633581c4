// The heap: one open libpmemobj pool, and atomic changes of it. Used by all of storage/pmem; only
// heap.cpp calls libpmemobj.
#pragma once

#include <millrace/core/status.hpp>
#include <millrace/storage/pmem/medium/format.hpp>
#include <millrace/storage/pmem/medium/heap_check.hpp>
#include <millrace/storage/pmem/medium/persist.hpp>

#include <libpmemobj/action_base.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace millrace::storage::pmem {

/// The last words of errors about damaged pools.
inline constexpr auto how_to_restore =
  "restore the file from a copy, or save what is whole with `millrace pool salvage "
  "PATH DIRECTORY`";

/// The type and size of an allocated object.
struct object_info {
  object_type type{};
  std::uint64_t size_bytes = 0; // usable
};

enum class heap_access : std::uint8_t {
  read_write,
  copy_on_write, // changes do not reach the file; not for devices
};

/// An open pool. An object is named by its offset in the file, which equals its offset in the
/// mapping.
/// Threads: any.
class heap {
public:
  /// Opens a pool that has passed `check_headers`, which has returned `words`. They are set before
  /// anything is allocated. They need not be durable, since every opening sets them anew.
  /// Errors: `busy` when it is open elsewhere, `corrupt_data`, `io_error`; with the message of
  ///         libpmemobj.
  static result<std::unique_ptr<heap>> open(
    const std::string& path, heap_access access, const heap_words& words);
  /// Makes a new pool; `size_bytes` 0 for a device. Errors: `already_exists`, `no_space`,
  /// `io_error`.
  static result<std::unique_ptr<heap>> create(const std::string& path, std::uint64_t size_bytes);
  ~heap();
  heap(const heap&) = delete;
  heap& operator=(const heap&) = delete;

  std::byte* base() const noexcept { return reinterpret_cast<std::byte*>(pool_); }
  template <class T>
  T* at(std::uint64_t offset) const noexcept {
    return reinterpret_cast<T*>(base() + offset);
  }
  std::uint64_t offset_of(const void* p) const noexcept {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(p) - base());
  }

  /// Returns the root object; with `make` it is made if missing. Null when there is none of the
  /// right size.
  pool_root* root(bool make = false) const;

  std::unordered_map<std::uint64_t, object_info> objects() const;

  /// The bytes free in pieces large enough for data (2.5 MiB), and the largest such piece. They are
  /// found by reserving all of them for a moment, so no other thread may reserve at the same time.
  struct free_space {
    std::uint64_t total_bytes = 0;
    std::uint64_t largest_bytes = 0;
  };
  free_space probe_free() const;

  PMEMobjpool* pool() const noexcept { return pool_; }

  /// Where an object may lie.
  enum class places : std::uint8_t {
    usual,
    any, // also those kept for what a full pool must take, and much larger ones
  };
  /// Reserves an object; false when there is no space. The caller publishes or cancels the action.
  bool reserve(
    std::uint64_t size_bytes, object_type type, places where, pobj_action& action,
    std::uint64_t& offset) const;

private:
  explicit heap(PMEMobjpool* pool);

  void take_spare_run() const;
  std::uint64_t take_largest(std::uint64_t size_bytes, std::vector<pobj_action>& taken) const;

  struct size_class {
    std::uint64_t unit_bytes = 0;
    std::uint32_t id = 0; // the library's number of the class
  };

  PMEMobjpool* pool_;
  std::vector<size_class> classes_; // classes of data and of tables, by size
  std::uint32_t spare_class_ = 0;   // 0: none
};

/// Returns the last message of libpmemobj on this thread.
std::string pmemobj_reason();

/// One atomic change: objects reserved, objects freed, words set. All of it happens at `publish`,
/// or none. Destroying it unpublished cancels it. Threads: one at a time.
class change {
public:
  explicit change(const heap& home, heap::places where = heap::places::usual)
    : home_(&home), where_(where) {}
  change(change&& other) noexcept
    : home_(other.home_), where_(other.where_), actions_(std::exchange(other.actions_, {})) {}
  change& operator=(change&&) = delete;
  ~change() { cancel(); }

  /// Reserves an object, which exists from `publish` on. Its bytes are not initialised.
  /// Errors: `no_space`.
  result<std::uint64_t> reserve(std::uint64_t size_bytes, object_type type);
  /// Returns the usable bytes of the object reserved last.
  std::uint64_t reserved_bytes() const noexcept { return actions_.back().heap.usable_size; }
  /// Cancels the actions after the first `count`.
  void cancel_after(std::size_t count);
  std::size_t size() const noexcept { return actions_.size(); }

  void set(
    checked_word& word, std::uint64_t owner, word_kind kind, std::uint64_t slot,
    std::uint64_t value);
  void set(std::uint64_t& word, std::uint64_t value);
  void free(std::uint64_t object);

  /// Makes the change. Errors: `no_space` when the pool has no space for the log of the change.
  [[nodiscard]] status publish(const persistence& persist);

private:
  void cancel();

  const heap* home_;
  heap::places where_; // the places of its objects
  std::vector<pobj_action> actions_;
};

} // namespace millrace::storage::pmem
