// Tests that memory gathered in huge pages keeps its bytes.
#include <millrace/core/huge_pages.hpp>
#include <millrace/tests/support/pattern.hpp>
#include <millrace/tests/support/skipped.hpp>

#include <boost/test/unit_test.hpp>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr std::uint64_t huge = 2u << 20;

// A tmpfs file of 8 MiB mapped where huge pages fit; its first 100 pages are a hole if asked for.
struct tmpfs_mapping {
  std::byte* reserved = nullptr;
  std::byte* data = nullptr;
  static constexpr std::uint64_t size_bytes = 4 * huge;

  explicit tmpfs_mapping(bool hole) {
    int fd = memfd_create("huge-pages-test", MFD_CLOEXEC);
    BOOST_TEST_REQUIRE(fd >= 0);
    auto first = hole ? 100 * 4096 : 0;
    BOOST_TEST_REQUIRE(posix_fallocate(fd, first, static_cast<off_t>(size_bytes) - first) == 0);
    auto* room = mmap(nullptr, size_bytes + huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    BOOST_TEST_REQUIRE(room != MAP_FAILED);
    reserved = static_cast<std::byte*>(room);
    data = reserved + -reinterpret_cast<std::uintptr_t>(room) % huge;
    auto* mapped = mmap(data, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    BOOST_TEST_REQUIRE(mapped == data);
    close(fd);
  }
  ~tmpfs_mapping() { munmap(reserved, size_bytes + huge); }
};

} // namespace

BOOST_AUTO_TEST_SUITE(huge_pages)

BOOST_AUTO_TEST_CASE(bytes_stay_when_their_pages_are_gathered) {
  tmpfs_mapping m{false};
  auto bytes = pattern(m.size_bytes, 1);
  std::copy(bytes.begin(), bytes.end(), m.data);
  auto gathered = gather_huge_pages(m.data, m.size_bytes);
  if (gathered == 0)
    millrace::testing::skipped("gathering huge pages: this kernel does not");
  BOOST_TEST(gathered % huge == 0u);
  BOOST_TEST(gathered <= m.size_bytes);
  BOOST_TEST(std::equal(bytes.begin(), bytes.end(), m.data));
  BOOST_TEST(gather_huge_pages(m.data, m.size_bytes) >= gathered);
  BOOST_TEST(std::equal(bytes.begin(), bytes.end(), m.data));
}

BOOST_AUTO_TEST_CASE(only_whole_pages_inside_the_range_are_gathered) {
  tmpfs_mapping m{false};
  BOOST_TEST(gather_huge_pages(m.data + 1, huge) == 0u);
  BOOST_TEST(gather_huge_pages(m.data, huge - 1) == 0u);
  BOOST_TEST(gather_huge_pages(m.data, 0) == 0u);
  BOOST_TEST(gather_huge_pages(m.data + 4096, 2 * huge) <= huge);
}

BOOST_AUTO_TEST_CASE(a_range_without_memory_is_no_error) {
  tmpfs_mapping m{true};
  m.data[m.size_bytes - 1] = std::byte{9};
  BOOST_TEST(gather_huge_pages(m.data, m.size_bytes) <= m.size_bytes);
  BOOST_TEST((m.data[m.size_bytes - 1] == std::byte{9}));
}

BOOST_AUTO_TEST_CASE(pages_are_gathered_in_the_background) {
  tmpfs_mapping m{false};
  auto bytes = pattern(m.size_bytes, 2);
  std::copy(bytes.begin(), bytes.end(), m.data);
  auto owner = std::make_shared<int>(1);
  {
    page_gathering all{{{m.data, m.size_bytes, owner}}};
    BOOST_TEST(owner.use_count() > 1);
    for (std::size_t i = 0; i < bytes.size(); i += 4096)
      BOOST_TEST_REQUIRE((m.data[i] == bytes[i]));
  }
  BOOST_TEST(owner.use_count() == 1);
  BOOST_TEST(std::equal(bytes.begin(), bytes.end(), m.data));
}

BOOST_AUTO_TEST_CASE(it_ends_when_it_is_stopped) {
  tmpfs_mapping m{false};
  std::atomic<bool> stop = true;
  BOOST_TEST(gather_huge_pages(m.data, m.size_bytes, &stop) == 0u);
}

BOOST_AUTO_TEST_SUITE_END()
