// Movers compute the digests in place, several blocks in one turn.
#include <millrace/actors/block_check.hpp>
#include <millrace/core/digest.hpp>

#include <algorithm>
#include <memory>
#include <utility>

namespace millrace::actors {

namespace {

constexpr std::uint32_t blocks_per_chunk = 8;

} // namespace

void check_blocks(
  transport::mover_pool& movers, const storage::window& w, const layout_offsets& offsets,
  const std::vector<std::uint64_t>& digests, completion<std::vector<checked_block>> done) {
  auto blocks = std::make_shared<std::vector<checked_block>>();
  for (auto& piece : w.pieces) {
    auto digest = offsets.digest_of(piece);
    for (std::uint64_t at = 0; at < piece.length; at += digest_block_bytes)
      blocks->push_back(
        {piece.data + at, std::min(digest_block_bytes, piece.length - at), digests[digest++],
         piece.tensor, piece.tensor_offset + at});
  }
  auto chunks = (blocks->size() + blocks_per_chunk - 1) / blocks_per_chunk;
  movers.submit(
    static_cast<std::uint32_t>(chunks),
    [blocks](std::uint32_t chunk) {
      auto last = std::min<std::size_t>((chunk + 1) * blocks_per_chunk, blocks->size());
      for (std::size_t i = chunk * blocks_per_chunk; i < last; ++i) {
        auto& b = (*blocks)[i];
        b.ok = digest(b.data, b.length) == b.expected;
      }
    },
    [blocks, hold = w.hold, done = std::move(done)] { done(std::move(*blocks)); });
}

} // namespace millrace::actors
