// Blocks of memory that threads keep for the bytes of small requests. Used by the messages that
// carry such bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace millrace {

/// The most that one thread keeps.
inline constexpr std::size_t kept_bytes_max = 512u << 10;

/// Takes a block: one that this thread has kept, or a new one.
///
/// *Problem*: the bytes of a request live for some microseconds. For more than 1 KiB, the system's
/// allocator has no memory of the thread's own. It takes a lock, merges what is freed with its
/// neighbours, and may return the end of its heap to the kernel, to ask for it again at once.
///
/// Blocks of more than 64 KiB, and of less than 1 KiB, are those of the system's allocator.
/// Errors:  throws `std::bad_alloc`.
/// Threads: any; a block may be given back on another thread than took it.
void* take_kept(std::size_t size_bytes);
/// Gives back a block that was taken with this size. The calling thread keeps it, if it has room.
void give_kept(void* block, std::size_t size_bytes) noexcept;
/// Returns the bytes that the calling thread keeps.
std::size_t kept_bytes() noexcept;

/// Takes the memory of a container from the blocks that threads keep.
template <class T>
struct kept_allocator {
  using value_type = T;
  static_assert(alignof(T) <= alignof(std::max_align_t));

  kept_allocator() = default;
  template <class U>
  kept_allocator(const kept_allocator<U>&) noexcept {}

  T* allocate(std::size_t count) { return static_cast<T*>(take_kept(count * sizeof(T))); }
  void deallocate(T* block, std::size_t count) noexcept { give_kept(block, count * sizeof(T)); }

  friend bool operator==(const kept_allocator&, const kept_allocator&) = default;
};

/// The bytes of a small request or reply.
using small_bytes = std::vector<std::uint8_t, kept_allocator<std::uint8_t>>;

} // namespace millrace
