// What libpmemobj lays out in a heap, as its stored format has it. Used by the check of a heap and
// by the choice of its classes.
#pragma once

#include <cstdint>

namespace millrace::storage::pmem {

/// The unit in which libpmemobj allocates. A larger object has chunks of its own, smaller ones lie
/// side by side in a run of chunks.
inline constexpr std::uint64_t chunk_bytes = 256 * 1024;
inline constexpr std::uint64_t run_chunks_max = 16;

/// In front of every object.
struct object_header {
  std::uint64_t size = 0; // with the header; flags in the upper 16 bits
  std::uint64_t type = 0;

  std::uint64_t size_bytes() const noexcept { return size & ((std::uint64_t{1} << 48) - 1); }
  bool internal() const noexcept { return size >> 48 != 0; } // an object of the library itself
  bool flags_known() const noexcept { return (size >> 48 & ~(std::uint64_t{1} << 15)) == 0; }
};

/// At the beginning of a run, before its bitmap.
struct run_header {
  std::uint64_t unit_bytes = 0;
  std::uint64_t alignment = 0;
};

/// The units of a run. An object takes one of them or several neighbours.
struct run_shape {
  std::uint64_t units = 0;
  std::uint64_t bitmap_words = 0; // that have bits of units
  std::uint64_t data_at = 0;      // where the first unit is, from the beginning of the run
};

/// Returns the shape of a run; without units when none fits.
constexpr run_shape shape_of_run(std::uint64_t chunks, std::uint64_t unit_bytes) noexcept {
  constexpr std::uint64_t header_words = sizeof(run_header) / 8, line_words = 8, word_bits = 64;
  auto content = chunks * chunk_bytes - sizeof(run_header);
  auto words = (content / unit_bytes + word_bits - 1) / word_bits + header_words;
  words = (words + line_words - 1) / line_words * line_words - header_words;
  run_shape shape;
  shape.units = words * 8 > content ? 0 : (content - words * 8) / unit_bytes;
  shape.bitmap_words = (shape.units + word_bits - 1) / word_bits;
  shape.data_at = sizeof(run_header) + words * 8;
  return shape;
}

} // namespace millrace::storage::pmem
