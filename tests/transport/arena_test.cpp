// Tests what other processes can do with the descriptor of an arena.
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/transport/memory/arena.hpp>

#include <boost/test/unit_test.hpp>
#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

using namespace millrace;
using namespace millrace::transport;
using testing::why;

namespace {

constexpr std::uint64_t size_bytes = 64u << 10;

std::shared_ptr<arena> arena_for(arena_sharing sharing) {
  auto made = arena::create(
    {.name = "arena-test", .size_bytes = size_bytes, .lock = false, .sharing = sharing});
  BOOST_TEST_REQUIRE(made.has_value(), why(made));
  return *made;
}

// Returns the error of a call that is to fail; 0 if it does not.
template <class Call>
int error_of(Call call) {
  errno = 0;
  return call() ? 0 : errno;
}

} // namespace

BOOST_AUTO_TEST_SUITE(arenas)

BOOST_AUTO_TEST_CASE(the_descriptor_of_memory_that_peers_only_read_gives_no_way_to_write) {
  auto a = arena_for(arena_sharing::read_only);
  BOOST_TEST_REQUIRE(a->mappable());
  BOOST_TEST(error_of([&] { return pwrite(a->fd(), "x", 1, 0) == 1; }) == EPERM);
  BOOST_TEST(error_of([&] {
               return fallocate(
                        a->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, size_bytes) == 0;
             }) == EPERM);
  BOOST_TEST(error_of([&] {
               return mmap(nullptr, size_bytes, PROT_WRITE, MAP_SHARED, a->fd(), 0) != MAP_FAILED;
             }) == EPERM);
  // Not even by its owner, under the eyes of readers.
  BOOST_TEST(error_of([&] { return madvise(a->data(), size_bytes, MADV_REMOVE) == 0; }) == EPERM);
  BOOST_TEST(error_of([&] { return ftruncate(a->fd(), 0) == 0; }) == EPERM);
}

BOOST_AUTO_TEST_CASE(a_mapping_for_reading_shows_what_the_owner_writes_and_stays_so) {
  auto a = arena_for(arena_sharing::read_only);
  auto mapped = mapped_arena::map(a->fd(), size_bytes, arena_sharing::read_only);
  BOOST_TEST_REQUIRE(mapped.has_value(), why(mapped));
  auto* seen = (*mapped)->data();
  (*mapped)->populate(0, size_bytes);
  std::fill_n(a->data(), size_bytes, std::byte{7});
  BOOST_TEST(std::all_of(seen, seen + size_bytes, [](std::byte b) { return b == std::byte{7}; }));
  BOOST_TEST(
    error_of([&] { return mprotect(seen, size_bytes, PROT_READ | PROT_WRITE) == 0; }) == EACCES);
  a.reset();
  BOOST_TEST((seen[size_bytes - 1] == std::byte{7}));
}

BOOST_AUTO_TEST_CASE(memory_that_peers_write_keeps_its_size_and_is_of_ordinary_pages) {
  auto a = arena::create(
    {.name = "arena-test",
     .size_bytes = 4u << 20,
     .huge_pages = true,
     .lock = false,
     .sharing = arena_sharing::read_write});
  BOOST_TEST_REQUIRE(a.has_value(), why(a));
  auto fd = (*a)->fd();
  BOOST_TEST(!(*a)->huge());
  BOOST_TEST(!is_of_huge_page_pool(fd));
  BOOST_TEST((*a)->mappable());
  for (auto size : {0, 8 << 20})
    BOOST_TEST(error_of([&] { return ftruncate(fd, size) == 0; }) == EPERM);
  BOOST_TEST(error_of([&] { return fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0; }) == EPERM);
  auto mapped = mapped_arena::map(fd, 4u << 20, arena_sharing::read_write);
  BOOST_TEST_REQUIRE(mapped.has_value(), why(mapped));
  (*mapped)->populate(0, 4u << 20);
  (*mapped)->data()[12'345] = std::byte{7};
  BOOST_TEST(((*a)->data()[12'345] == std::byte{7}));
}

BOOST_AUTO_TEST_CASE(arenas_are_mapped_only_as_they_are_shared) {
  auto transfers = arena_for(arena_sharing::transfers);
  auto read_only = arena_for(arena_sharing::read_only);
  BOOST_TEST(!transfers->mappable());
  BOOST_TEST(mapped_arena::map(transfers->fd(), size_bytes).has_value());
  BOOST_TEST(!mapped_arena::map(read_only->fd(), size_bytes).has_value());
  BOOST_TEST(
    !mapped_arena::map(read_only->fd(), size_bytes, arena_sharing::read_write).has_value());
  auto refused = mapped_arena::map(transfers->fd(), size_bytes, arena_sharing::read_only);
  BOOST_TEST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code() == errc::permission_denied));
}

BOOST_AUTO_TEST_SUITE_END()
