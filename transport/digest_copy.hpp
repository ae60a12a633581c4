// Copying and digesting in one pass. Called by copy jobs, once for each digest block.
#pragma once

#include <millrace/transport/copy.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace millrace::transport {

/// Copies `size_bytes` from `source` to `target`, which do not overlap, and returns `digest(source, size_bytes)`
/// (or of what has arrived; the same unless the source changes meanwhile).
///
/// With streaming stores to a target on a cache line every byte is loaded once, for both: 96 to 100 % of the speed
/// of the copy alone, where turns of reading and writing reached 75 to 82 %.
std::uint64_t copy_and_digest(
  std::byte* target, const std::byte* source, std::uint64_t size_bytes, store_mode mode);

/// One way to do that, for streaming modes, at least 1 KiB and a target on a cache line.
using digest_copy = std::uint64_t (*)(
  std::byte* target, const std::byte* source, std::uint64_t size_bytes, store_mode mode);

/// Those that this processor has, the fastest first, so that tests reach each of them; none on processors
/// without AVX2.
const std::vector<digest_copy>& digest_copies();

} // namespace millrace::transport
