// Physically contiguous memory for one thread's direct I/O. Used by the segment store.
#pragma once

#include <millrace/storage/io/file_io.hpp>

#include <cstddef>
#include <cstdint>

namespace millrace::storage::io {

/// A huge page of the calling thread, or null where none could be made.
///
/// *Problem*: staging memory is shared with clients, and shared memory comes in pages of 4 KiB unless the system
/// has a hugetlb pool. A device takes a request as a list of contiguous runs: from such pages direct I/O reads at
/// 1.4 GB/s and writes at 3.9 where one huge page makes 3.7 and 7.4 (1 MiB requests, 4 threads). Copying to or from a
/// huge page on the way costs a tenth of that.
std::byte* io_buffer() noexcept;

inline constexpr std::uint64_t io_buffer_bytes = 2u << 20;

} // namespace millrace::storage::io
