// One request for each huge page, since a single request for the whole range takes the kernel ten
// times as long. Called for large mappings that stay for long.
#include <millrace/core/huge_pages.hpp>

#include <sys/mman.h>

#include <cerrno>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace millrace {

std::uint64_t gather_huge_pages(std::byte* data, std::uint64_t size_bytes) noexcept {
  constexpr std::uint64_t huge_page_bytes = 2u << 20;
  auto skipped = -reinterpret_cast<std::uintptr_t>(data) % huge_page_bytes;
  std::uint64_t gathered = 0;
  for (auto at = skipped; at < size_bytes && size_bytes - at >= huge_page_bytes;
       at += huge_page_bytes) {
    if (madvise(data + at, huge_page_bytes, MADV_COLLAPSE) == 0)
      gathered += huge_page_bytes;
    else if (errno == ENOMEM)
      break;
  }
  return gathered;
}

} // namespace millrace
