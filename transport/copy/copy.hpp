// The copy kernels: what every mover runs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace::transport {

/// How the destination is written.
enum class store_mode {
  cached,       // ordinary stores: the bytes will be read again soon
  streaming,    // past the caches, for transfers larger than they are
  written_back, // past the caches; lines that this cannot write whole are written back
};

/// Copies `size_bytes` from `source` to `target`; they must not overlap.
void copy_bytes(
  std::byte* target, const std::byte* source, std::size_t size_bytes, store_mode mode);

/// Whether this processor can write cache lines back to memory (and so to the persistence domain).
bool can_write_back() noexcept;

/// Starts to write back the lines of `[data, data + size_bytes)`; done with the next `streaming_fence`.
/// Only where `can_write_back`.
void write_back(const std::byte* data, std::size_t size_bytes) noexcept;

/// Streaming stores of this thread become visible to others, and what was written back has arrived. Once at the
/// end of a chunk.
void streaming_fence() noexcept;

/// Transfers of at least this many bytes stream.
inline constexpr std::uint64_t streaming_bytes_min = 1u << 20;

/// A long copy goes on in so many places at once: processors read ahead within a page only, and wait at the beginning of
/// the next.
inline constexpr std::size_t copy_places = 4;

/// A run shorter than this is written with ordinary stores in every mode.
inline constexpr std::uint64_t streaming_run_bytes_min = 256;

} // namespace millrace::transport
