// Copies and digests in one pass.
// Called by copy jobs for ranges that are dense on both sides.
#pragma once

#include <millrace/transport/copy/copy.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace millrace::transport {

/// Copies `size_bytes` from `source` to `target`, which must not overlap. Puts the digest of each
/// `digest_block_bytes` of them (the last block may be shorter) into `digests`. The digest is that
/// of the source or of the copy; they are the same unless the source changes meanwhile.
///
/// With streaming stores to a target on a cache line, every byte is loaded once for both, and four
/// blocks are copied at once. This is about as fast as the copy alone (`bench_copy_ways`).
void copy_and_digest(
  std::byte* target, const std::byte* source, std::uint64_t size_bytes, store_mode mode,
  std::uint64_t* digests);

/// One implementation, for streaming modes and a target on a cache line.
using digest_copy = void (*)(
  std::byte* target, const std::byte* source, std::uint64_t size_bytes, store_mode mode,
  std::uint64_t* digests);

/// Returns the implementations for this processor, the fastest first, so that tests reach each of
/// them. There are none without AVX2.
const std::vector<digest_copy>& digest_copies();

} // namespace millrace::transport
