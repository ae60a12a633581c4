// One huge page per thread. Used by segment files and pools.
#include <millrace/core/rounding.hpp>
#include <millrace/storage/io/io_buffer.hpp>

#include <sys/mman.h>

#include <cstring>

namespace millrace::storage::io {

namespace {

// Of this thread; null when it has ended: handlers at exit run after that.
constinit thread_local std::byte* usable = nullptr;

struct huge_page {
  huge_page() {
    // Twice the size, so that it contains an aligned page.
    mapping = ::mmap(
      nullptr, 2 * io_buffer_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED)
      return;
    auto address = reinterpret_cast<std::uintptr_t>(mapping);
    auto* data = static_cast<std::byte*>(mapping) + (round_up(address, io_buffer_bytes) - address);
    ::madvise(data, io_buffer_bytes, MADV_HUGEPAGE);
    std::memset(data, 0, io_buffer_bytes);
    usable = data;
  }
  huge_page(const huge_page&) = delete;
  huge_page& operator=(const huge_page&) = delete;
  ~huge_page() {
    usable = nullptr;
    if (mapping != MAP_FAILED)
      ::munmap(mapping, 2 * io_buffer_bytes);
  }

  void* mapping = MAP_FAILED;
};

} // namespace

std::byte* io_buffer() noexcept {
  thread_local huge_page page;
  static_cast<void>(page);
  return usable;
}

} // namespace millrace::storage::io
