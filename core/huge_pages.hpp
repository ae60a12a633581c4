// Moves memory that is there already into huge pages. Asked by whoever keeps large mappings for long.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace {

/// Asks the kernel to gather a mapped and allocated range of tmpfs or anonymous memory in huge pages, and returns how
/// many of its bytes lie in such pages that it could gather: 0 where it cannot (other file systems, holes, before
/// Linux 6.1), which is no error.
///
/// *Problem*: a process that maps 1 GiB of small pages for the first time spends longer on filling its page table
/// than on copying the bytes: a restore into a fresh process took 2 to 3 times as long as a second one. In huge
/// pages it takes 1.1 times as long. tmpfs gives them only where an administrator mounted it so; this call needs
/// nobody's leave, and what it did stays with the file.
///
/// Cost:    0.5 to 6 ms for 2 MiB (more on a busy machine), once; a microsecond when it is done already. The bytes stay
///          usable meanwhile.
/// Threads: any; parts of one range from several threads, to share the time.
std::uint64_t gather_huge_pages(std::byte* data, std::uint64_t size_bytes) noexcept;

} // namespace millrace
