// One huge page per thread. Used by segment files and pools.
#include <millrace/core/rounding.hpp>
#include <millrace/core/thread_object.hpp>
#include <millrace/storage/io/io_buffer.hpp>

#include <sys/mman.h>

#include <cstring>

namespace millrace::storage::io {

namespace {

struct huge_page {
  huge_page() {
    // Twice the size, so that it contains an aligned page.
    mapping = ::mmap(
      nullptr, 2 * io_buffer_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED)
      return;
    auto address = reinterpret_cast<std::uintptr_t>(mapping);
    data = static_cast<std::byte*>(mapping) + (round_up(address, io_buffer_bytes) - address);
    ::madvise(data, io_buffer_bytes, MADV_HUGEPAGE);
    std::memset(data, 0, io_buffer_bytes);
  }
  huge_page(const huge_page&) = delete;
  huge_page& operator=(const huge_page&) = delete;
  ~huge_page() {
    if (mapping != MAP_FAILED)
      ::munmap(mapping, 2 * io_buffer_bytes);
  }

  void* mapping = MAP_FAILED;
  std::byte* data = nullptr;
};

} // namespace

std::byte* io_buffer() noexcept {
  auto* page = of_this_thread<huge_page>();
  return page ? page->data : nullptr;
}

} // namespace millrace::storage::io
