// A bounded memory source on the heap.
// Used by tests of code that is given memory.
#pragma once

#include <millrace/core/memory.hpp>

#include <atomic>
#include <cstdlib>
#include <string>

namespace millrace::testing {

class heap_memory_source final : public memory_source {
public:
  /// `block_bytes_max`: larger blocks are refused, as by an arena in pieces.
  explicit heap_memory_source(std::uint64_t capacity_bytes, std::uint64_t block_bytes_max = ~0ull)
    : capacity_(capacity_bytes), block_max_(block_bytes_max) {}

  result<memory_block> allocate(std::uint64_t size_bytes, std::size_t alignment) override {
    if (size_bytes > block_max_ || used_->fetch_add(size_bytes) + size_bytes > capacity_) {
      if (size_bytes <= block_max_)
        used_->fetch_sub(size_bytes);
      return fail(
        errc::no_space,
        "asked for " + std::to_string(size_bytes) + ", free are " +
          std::to_string(capacity_ - used_bytes()));
    }
    auto data = std::aligned_alloc(alignment, (size_bytes + alignment - 1) / alignment * alignment);
    auto owner = std::shared_ptr<void>{data, [used = used_, size_bytes](void* p) {
                                         std::free(p);
                                         used->fetch_sub(size_bytes);
                                       }};
    return memory_block{static_cast<std::byte*>(data), size_bytes, std::move(owner)};
  }

  bool contiguous() const noexcept override { return false; }
  std::uint64_t capacity_bytes() const noexcept override { return capacity_; }
  std::uint64_t used_bytes() const noexcept override { return *used_; }

private:
  std::uint64_t capacity_;
  std::uint64_t block_max_;
  std::shared_ptr<std::atomic<std::uint64_t>> used_ =
    std::make_shared<std::atomic<std::uint64_t>>(0);
};

} // namespace millrace::testing
