// Moves allocated memory into huge pages. Called for large mappings that live long.
#pragma once

#include <millrace/core/memory.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace millrace {

/// Asks the kernel to move a mapped and allocated range of tmpfs or anonymous memory into huge
/// pages. Returns how many bytes lie in huge pages now. 0 is not an error: other file systems,
/// ranges with holes and kernels before Linux 6.1 have none.
///
/// *Problem*: a process that maps 1 GiB of small pages for the first time spends longer on its page
/// table than on copying the bytes. A restore into a fresh process took 2 to 3 times as long as a
/// second one; with huge pages it takes 1.1 times as long. tmpfs uses huge pages only where an
/// administrator mounted it so. This call needs no privilege, and its effect stays with the file.
///
/// Cost:    0.5 to 6 ms for 2 MiB (more on a busy machine), once; a microsecond if the range is in
///          huge pages already. The bytes stay usable during the call.
/// Threads: any; several threads may take parts of one range. It ends early when `stop`, which may
///          be null, becomes true.
std::uint64_t gather_huge_pages(
  std::byte* data, std::uint64_t size_bytes, const std::atomic<bool>* stop = nullptr) noexcept;

/// Does so in the background, on a thread that gives way to others: for large memory of shared
/// pages in which many small ranges are read at random, as by loaders. With small pages the
/// processor looks up an address for each of them. Without a thread the pages stay as they are, and
/// on a simulated machine.
/// Threads: one at a time. The destructor waits for one huge page at most.
class page_gathering {
public:
  explicit page_gathering(std::vector<memory_block> ranges);
  ~page_gathering();
  page_gathering(const page_gathering&) = delete;
  page_gathering& operator=(const page_gathering&) = delete;

private:
  const std::vector<memory_block> ranges_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

} // namespace millrace
