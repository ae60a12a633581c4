// The copy kernels, which every mover runs.
// Called by copy jobs and gather lists.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace millrace::transport {

/// How a copy writes its destination.
enum class store_mode {
  cached,       // ordinary stores: the bytes will be read again soon
  streaming,    // past the caches, for transfers larger than the caches
  written_back, // past the caches, and lines written in part are written back
};

/// Copies `size_bytes` from `source` to `target`, which must not overlap.
void copy_bytes(
  std::byte* target, const std::byte* source, std::size_t size_bytes, store_mode mode);

/// One run of bytes to copy. Source and target must not overlap.
struct local_copy {
  std::byte* target = nullptr;
  const std::byte* source = nullptr;
  std::uint64_t length = 0;
};

/// Copies all parts. Short ones, such as the samples of a batch, begin on pages of which the
/// processor has read nothing yet; so each is fetched while those before it are copied.
void copy_parts(std::span<const local_copy> parts, store_mode mode);

/// Returns true if this processor can write cache lines back to memory (and so to the persistence
/// domain).
bool can_write_back() noexcept;

/// Starts to write back the lines of `[data, data + size_bytes)`. The next `streaming_fence` waits
/// for them. Only where `can_write_back`.
void write_back(const std::byte* data, std::size_t size_bytes) noexcept;

/// Makes this thread's streaming stores visible to other threads, and waits until the lines written
/// back have arrived. Called once at the end of a chunk.
void streaming_fence() noexcept;

/// Transfers of at least this many bytes use streaming stores.
inline constexpr std::uint64_t streaming_bytes_min = 1u << 20;

/// A run shorter than this is written with ordinary stores in every mode.
inline constexpr std::uint64_t streaming_run_bytes_min = 256;

} // namespace millrace::transport
