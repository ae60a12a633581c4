// The check of a heap before libpmemobj opens it: everything that the library believes without a
// checksum. Called before a pool opens, and by salvage.
#pragma once

#include <millrace/core/status.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>

namespace millrace::storage::pmem {

/// The places of libpmemobj's stored format, version 6. Its header checks them by a checksum, and
/// the library that makes pools of this format always chooses these.
inline constexpr std::uint64_t lanes_at = 8192;
inline constexpr std::uint64_t lane_count = 1024;
inline constexpr std::uint64_t heap_at = lanes_at + lane_count * 3072;

/// Words of a pool, by their offsets.
using heap_words = std::map<std::uint64_t, std::uint64_t>;

/// Returns the words that libpmemobj will set when it opens the pool, since a process was killed
/// between the log of a change and its last word: those of all logs that match their checksums.
/// Logs that are damaged are left out.
heap_words read_pending(std::span<const std::byte> file);

/// Checks the logs, the headers of zones and chunks, the bitmaps of runs and the headers of objects
/// of a pool.
///
/// *Problem*: libpmemobj follows all of these without a bound. One flipped bit makes it read or
/// divide by what is not there, and the process dies by a signal; or it lends the space of an
/// object a second time.
/// Returns the words that must be set before the library allocates: the ends of free pieces that a
/// killed process, or power that was cut, left old. The library would join pieces that are not
/// neighbours.
/// Cost:   reads 3 MiB of logs, and a page for each object.
/// Errors: `corrupt_data` saying what is damaged.
[[nodiscard]] result<heap_words> check_heap(
  std::span<const std::byte> file, std::uint64_t heap_bytes, std::uint64_t root_at);

} // namespace millrace::storage::pmem
