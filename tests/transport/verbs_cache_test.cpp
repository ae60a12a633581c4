// Tests registrations that are kept and dropped, with a fake device, and what the kernel tells of
// unmapping.
#include <millrace/tests/support/kept_log.hpp>
#include <millrace/tests/support/skipped.hpp>
#include <millrace/transport/verbs/arena_registry.hpp>
#include <millrace/transport/verbs/registration_cache.hpp>
#include <millrace/transport/verbs/unmap_watch.hpp>

#include <boost/test/unit_test.hpp>
#include <sys/mman.h>

#include <atomic>
#include <iostream>
#include <thread>

using namespace millrace;
using namespace millrace::transport::verbs;

namespace {

constexpr std::uint64_t page = 4096;

/// Counts registrations; tells what the test says was unmapped.
struct fake_device {
  std::atomic<int> made = 0, alive = 0;
  bool watches = true;
  bool refuses = false;
  std::vector<memory_range> unmapped;
  int unwatched = 0;
  std::shared_ptr<registration_cache> cache;

  explicit fake_device(registration_cache::bounds most = {4, 100 * page}) {
    registration_cache::hooks h;
    h.make = [this](const memory_range&) -> result<std::shared_ptr<void>> {
      if (refuses)
        return fail(errc::unsupported, "refused");
      ++made, ++alive;
      return std::shared_ptr<void>{new int{made}, [this](void* x) {
                                     --alive;
                                     delete static_cast<int*>(x);
                                   }};
    };
    h.watch = [this](const memory_range&) { return watches; };
    h.unwatch = [this](const memory_range&) { ++unwatched; };
    h.unmapped = [this](std::vector<memory_range>& out) { out.swap(unmapped); };
    cache = std::make_shared<registration_cache>(most, std::move(h));
  }

  static std::byte* at(std::uint64_t pages, std::uint64_t bytes = 0) {
    return reinterpret_cast<std::byte*>((1000 + pages) * page + bytes);
  }
  std::shared_ptr<void> get(std::uint64_t pages, std::uint64_t length, std::uint64_t bytes = 0) {
    return cache->acquire(at(pages, bytes), length).value();
  }
};

} // namespace

BOOST_AUTO_TEST_SUITE(verbs_registration_cache)

BOOST_AUTO_TEST_CASE(what_lies_in_a_kept_registration_is_not_registered_again) {
  fake_device d;
  { auto r = d.get(0, 3 * page - 100, 50); }
  BOOST_TEST(d.alive == 1);
  BOOST_TEST(d.cache->bytes() == 3 * page);
  auto a = d.get(1, page);
  auto b = d.get(0, 1, 7);
  BOOST_TEST(a == b);
  BOOST_TEST(d.made == 1);
  auto c = d.get(2, page + 1); // one byte too far
  BOOST_TEST(d.made == 2);
}

BOOST_AUTO_TEST_CASE(the_least_recently_used_goes_first) {
  fake_device d;
  for (int i = 0; i < 4; ++i)
    d.get(10 * i, page);
  d.get(0, page);   // used again
  d.get(100, page); // the fifth: 10 goes
  BOOST_TEST(d.cache->entries() == 4u);
  d.get(0, page);
  BOOST_TEST(d.made == 5);
  d.get(10, page);
  BOOST_TEST(d.made == 6);
  BOOST_TEST(d.alive == 4);
}

BOOST_AUTO_TEST_CASE(bytes_are_bounded_too_and_what_is_in_use_stays) {
  fake_device d{{100, 10 * page}};
  auto used = d.get(0, 6 * page);
  d.get(50, 4 * page);
  d.get(100, 3 * page);
  BOOST_TEST(d.cache->bytes() == 9 * page);
  auto more = d.cache->acquire(d.at(200), 5 * page);
  BOOST_TEST_REQUIRE(!more.has_value());
  BOOST_TEST((more.error().code() == errc::no_space));
  used = nullptr;
  BOOST_TEST(d.cache->acquire(d.at(200), 5 * page).has_value());
}

BOOST_AUTO_TEST_CASE(what_nobody_watches_ends_with_its_last_user) {
  fake_device d;
  d.watches = false;
  auto a = d.get(0, page);
  auto b = d.get(0, page);
  BOOST_TEST(d.made == 1);
  a = nullptr;
  BOOST_TEST(d.alive == 1);
  b = nullptr;
  BOOST_TEST(d.alive == 0);
  BOOST_TEST(d.cache->entries() == 0u);
}

BOOST_AUTO_TEST_CASE(unmapped_memory_is_registered_anew) {
  fake_device d;
  d.get(0, 2 * page);
  d.get(10, 2 * page);
  d.unmapped = {{d.at(1), page}};
  d.get(0, 2 * page);
  BOOST_TEST(d.made == 3);
  d.get(10, 2 * page);
  BOOST_TEST(d.made == 3);
  d.cache->sweep();
  BOOST_TEST(d.alive == 2);
}

BOOST_AUTO_TEST_CASE(invalidated_while_in_use_it_serves_its_users_and_no_others) {
  fake_device d;
  auto used = d.get(0, page);
  d.cache->invalidate(d.at(0, 100), 1);
  BOOST_TEST(d.alive == 1);
  auto fresh = d.get(0, page);
  BOOST_TEST(d.made == 2);
  BOOST_TEST(fresh != used);
  used = nullptr;
  BOOST_TEST(d.alive == 1);
  BOOST_TEST(d.unwatched == 0); // the other one still is
  fresh = nullptr;
  d.cache->invalidate(d.at(0), page);
  BOOST_TEST(d.alive == 0);
  BOOST_TEST(d.unwatched == 1);
}

BOOST_AUTO_TEST_CASE(what_cannot_be_registered_leaves_nothing) {
  fake_device d;
  d.refuses = true;
  BOOST_TEST((d.cache->acquire(d.at(0), page).error().code() == errc::unsupported));
  BOOST_TEST(d.cache->entries() == 0u);
  BOOST_TEST(d.cache->bytes() == 0u);
  d.refuses = false;
  BOOST_TEST(d.cache->acquire(d.at(0), page).has_value());
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(verbs_unmap_watch)

namespace {

struct mapping {
  std::byte* data;
  std::uint64_t size_bytes = 64 * page;
  mapping() {
    data = static_cast<std::byte*>(
      mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    BOOST_REQUIRE(data != MAP_FAILED);
    std::fill_n(data, size_bytes, std::byte{1});
  }
  ~mapping() { munmap(data, size_bytes); }
};

bool told(unmap_watch& w, const memory_range& of) {
  std::vector<memory_range> gone;
  w.take(gone);
  return std::any_of(gone.begin(), gone.end(), [&](auto& r) { return r.overlaps(of); });
}

} // namespace

BOOST_AUTO_TEST_CASE(unmapping_dropping_and_moving_are_told_by_the_time_they_return) {
  auto w = unmap_watch::open();
  if (!w) {
    millrace::testing::skipped("unmap watch: the kernel does not permit userfaultfd here");
    return;
  }
  mapping dropped, unmapped, moved;
  memory_range drop{dropped.data, dropped.size_bytes}, unmap{unmapped.data, 8 * page},
    move{moved.data, moved.size_bytes};
  BOOST_TEST_REQUIRE((w->watch(drop) && w->watch(unmap) && w->watch(move)));
  BOOST_TEST(!told(*w, drop));
  dropped.data[0] = std::byte{2}; // faults stay the kernel's
  madvise(dropped.data + page, page, MADV_DONTNEED);
  BOOST_TEST(told(*w, {dropped.data + page, page}));
  dropped.data[page] = std::byte{3};
  munmap(unmapped.data + 2 * page, page);
  BOOST_TEST(told(*w, unmap));
  auto* to = mremap(moved.data, moved.size_bytes, 2 * moved.size_bytes, MREMAP_MAYMOVE);
  BOOST_REQUIRE(to != MAP_FAILED);
  if (to != moved.data)
    BOOST_TEST(told(*w, move));
  moved.data = static_cast<std::byte*>(to);
  moved.size_bytes *= 2;
  w->unwatch(drop);
  madvise(dropped.data, page, MADV_DONTNEED);
  BOOST_TEST(!told(*w, drop));
}

BOOST_AUTO_TEST_CASE(more_than_it_can_keep_is_told_as_one_range) {
  auto w = unmap_watch::open();
  if (!w)
    return;
  mapping m;
  BOOST_TEST_REQUIRE(w->watch({m.data, m.size_bytes}));
  for (int i = 0; i < 1000; ++i)
    madvise(m.data + i % 60 * page, page, MADV_DONTNEED);
  BOOST_TEST(told(*w, {m.data + 59 * page, page}));
}

BOOST_AUTO_TEST_SUITE_END()

// Arenas.

namespace {

/// Registers arenas with no device at all, or says why not.
struct registrar {
  int asked = 0;
  status refusal;
  arena_registry registry;
  std::shared_ptr<transport::arena> memory =
    transport::arena::create({.name = "registrar", .size_bytes = 1u << 20}).value();

  explicit registrar(std::chrono::milliseconds retry_after)
    : registry(
        [this](const transport::arena& a) -> result<std::shared_ptr<registered_memory>> {
          ++asked;
          if (!refusal.ok())
            return fail(refusal);
          return registered_memory::add({}, a.data(), a.size_bytes());
        },
        retry_after) {}
};

} // namespace

BOOST_AUTO_TEST_SUITE(verbs_arena_registry)

BOOST_AUTO_TEST_CASE(want_of_room_is_for_other_drivers_and_told_once) {
  testing::kept_log lines;
  registrar r{std::chrono::hours{1}};
  r.refusal = {errc::no_space, "raise the limit"};
  for (int i = 0; i < 3; ++i) {
    auto made = r.registry.add(r.memory);
    BOOST_TEST((!made && made.error().code() == errc::unsupported));
    BOOST_TEST(made.error().detail() == "raise the limit");
    auto found = r.registry.find(*r.memory);
    BOOST_TEST((!found && found.error().code() == errc::unsupported));
  }
  BOOST_TEST(r.asked == 1); // pages are not pinned for nothing, transfer by transfer
  BOOST_TEST(lines.count("raise the limit") == 1u, lines.text());
}

BOOST_AUTO_TEST_CASE(room_that_comes_later_is_used) {
  registrar r{std::chrono::milliseconds{0}};
  r.refusal = {errc::no_space, "raise the limit"};
  BOOST_TEST(!r.registry.add(r.memory).has_value());
  auto found = r.registry.find(*r.memory);
  BOOST_TEST((found && !*found)); // to be tried
  r.refusal = {};
  auto made = r.registry.add(r.memory);
  BOOST_TEST_REQUIRE((made && *made));
  BOOST_TEST(r.registry.find(*r.memory).value() == *made);
  BOOST_TEST(r.asked == 2);
}

BOOST_AUTO_TEST_CASE(what_devices_cannot_have_is_not_tried_again) {
  registrar r{std::chrono::milliseconds{0}};
  r.refusal = {errc::unsupported, "no such memory"};
  for (int i = 0; i < 3; ++i)
    BOOST_TEST(!r.registry.add(r.memory).has_value());
  BOOST_TEST(r.asked == 1);
}

BOOST_AUTO_TEST_SUITE_END()
