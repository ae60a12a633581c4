// Lists of free blocks, one for each power of two from 2 KiB to 64 KiB.
#include <millrace/core/kept_blocks.hpp>

#include <array>
#include <bit>
#include <new>

namespace millrace {

namespace {

constexpr unsigned smallest_shift = 11, largest_shift = 16;

// The address sanitizer must see that a block is freed.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool keeps_blocks = false;
#else
constexpr bool keeps_blocks = true;
#endif

struct free_block {
  free_block* next;
};

struct kept_lists {
  std::array<free_block*, largest_shift - smallest_shift + 1> first;
  std::size_t size_bytes;
  bool ended; // the thread ends: what is given back from now on is freed
};

// It has no destructor, since objects that live longer give blocks back.
constinit thread_local kept_lists kept{};

struct freed_at_end {
  ~freed_at_end() {
    kept.ended = true;
    for (auto& list : kept.first)
      while (auto* block = list) {
        list = block->next;
        ::operator delete(block);
      }
    kept.size_bytes = 0;
  }
};

// Returns the shift of the blocks for this size; 0: none are kept.
constexpr unsigned shift_of(std::size_t size_bytes) noexcept {
  auto whole = size_bytes > (1u << (smallest_shift - 1)) && size_bytes <= (1u << largest_shift);
  return whole ? static_cast<unsigned>(std::bit_width(size_bytes - 1)) : 0;
}
static_assert(shift_of(1024) == 0 && shift_of(1025) == 11 && shift_of(2048) == 11);
static_assert(shift_of(4096) == 12 && shift_of(65536) == 16 && shift_of(65537) == 0);

} // namespace

void* take_kept(std::size_t size_bytes) {
  auto shift = shift_of(size_bytes);
  if (shift == 0)
    return ::operator new(size_bytes);
  auto& list = kept.first[shift - smallest_shift];
  auto* block = list;
  if (!block)
    return ::operator new (std::size_t{1} << shift);
  list = block->next;
  kept.size_bytes -= std::size_t{1} << shift;
  return block;
}

void give_kept(void* block, std::size_t size_bytes) noexcept {
  auto shift = shift_of(size_bytes);
  auto whole = std::size_t{1} << shift;
  if (!keeps_blocks || shift == 0 || kept.ended || kept.size_bytes + whole > kept_bytes_max)
    return ::operator delete(block);
  static thread_local freed_at_end at_end;
  static_cast<void>(at_end);
  auto& list = kept.first[shift - smallest_shift];
  list = new (block) free_block{list};
  kept.size_bytes += whole;
}

std::size_t kept_bytes() noexcept { return kept.size_bytes; }

} // namespace millrace
