// Compares the digest blocks of a window with the checksums that were stored. Used by
// verifications, and by loads of boxes.
#pragma once

#include <millrace/actors/layout_offsets.hpp>
#include <millrace/storage/bucket.hpp>
#include <millrace/transport/copy/mover_pool.hpp>

#include <cstdint>
#include <vector>

namespace millrace::actors {

/// One digest block of a window.
struct checked_block {
  const std::byte* data = nullptr;
  std::uint64_t length = 0;
  std::uint64_t expected = 0;
  std::uint32_t tensor = 0;
  std::uint64_t tensor_offset = 0;
  bool ok = false;
};

/// Compares all blocks of a window on movers. `digests`: those of all tensors. The window's memory
/// is kept until then. `done` gets the blocks in their order, on any thread.
void check_blocks(
  transport::mover_pool& movers, const storage::window& w, const layout_offsets& offsets,
  const std::vector<std::uint64_t>& digests, completion<std::vector<checked_block>> done);

} // namespace millrace::actors
