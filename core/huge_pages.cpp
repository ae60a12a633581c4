// One request for each huge page, since a single request for the whole range takes the kernel ten
// times as long. Called for large mappings that stay for long.
#include <millrace/core/background_thread.hpp>
#include <millrace/core/huge_pages.hpp>
#include <millrace/core/simulated_machine.hpp>

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace millrace {

namespace {

constexpr std::uint64_t huge_page_bytes = 2u << 20;
constexpr std::uint32_t nice = 5; // others may wait for a page that is being moved

bool has_huge_page(const memory_block& block) { return block.size_bytes >= huge_page_bytes; }

} // namespace

std::uint64_t gather_huge_pages(
  std::byte* data, std::uint64_t size_bytes, const std::atomic<bool>* stop) noexcept {
  auto skipped = -reinterpret_cast<std::uintptr_t>(data) % huge_page_bytes;
  std::uint64_t gathered = 0;
  for (auto at = skipped; at < size_bytes && size_bytes - at >= huge_page_bytes;
       at += huge_page_bytes) {
    if (stop && *stop)
      break;
    else if (madvise(data + at, huge_page_bytes, MADV_COLLAPSE) == 0)
      gathered += huge_page_bytes;
    else if (errno == ENOMEM)
      break;
  }
  return gathered;
}

page_gathering::page_gathering(std::vector<memory_block> ranges) : ranges_(std::move(ranges)) {
  if (simulated() || std::ranges::none_of(ranges_, has_huge_page))
    return;
  try {
    thread_ = background_thread([this] {
      lower_priority(nice);
      for (auto& range : ranges_)
        gather_huge_pages(range.data, range.size_bytes, &stop_);
    });
  } catch (const std::system_error&) { // they stay small
  }
}

page_gathering::~page_gathering() {
  stop_ = true;
  if (thread_.joinable())
    thread_.join();
}

} // namespace millrace
