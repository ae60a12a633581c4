// Tests staging memory that several processes use: shares, turns, and what comes back.
#include <millrace/actors/staging/staging_lender.hpp>
#include <millrace/tests/support/heap_memory_source.hpp>
#include <millrace/tests/support/held_completion.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <set>
#include <utility>
#include <vector>

using namespace millrace;
using namespace millrace::actors;

namespace {

thread_local int allocations_left = -1; // of this thread; below 0: any number

} // namespace

void* operator new(std::size_t size_bytes, const std::nothrow_t&) noexcept {
  auto* made = allocations_left == 0 ? nullptr : std::malloc(size_bytes);
  allocations_left -= made && allocations_left > 0 ? 1 : 0;
  return made;
}

void* operator new(std::size_t size_bytes) {
  auto* made = operator new(size_bytes, std::nothrow);
  if (!made)
    throw std::bad_alloc{};
  return made;
}

void operator delete(void* made) noexcept { std::free(made); }
void operator delete(void* made, std::size_t) noexcept { std::free(made); }

namespace {

party someone(const std::string& owner = "user 1") { return {owner, random_id<peer_id>()}; }

/// A range of memory that lends what is free in pieces.
class pieces_source final : public memory_source {
public:
  explicit pieces_source(std::uint64_t pages) : free_(pages, true) {}

  result<memory_block> allocate(std::uint64_t size_bytes, std::size_t) override {
    auto pages = size_bytes / 4096;
    for (std::size_t at = 0; at + pages <= free_.size(); ++at) {
      auto from = free_.begin() + static_cast<std::ptrdiff_t>(at);
      if (std::find(from, from + static_cast<std::ptrdiff_t>(pages), false) != from + pages)
        continue;
      std::fill_n(from, pages, false);
      std::shared_ptr<void> owner{base_ + at * 4096, [this, at, pages](void*) {
                                    std::fill_n(free_.begin() + at, pages, true);
                                  }};
      return memory_block{base_ + at * 4096, size_bytes, std::move(owner)};
    }
    return fail(errc::no_space, "in pieces");
  }
  bool contiguous() const noexcept override { return false; }
  std::uint64_t capacity_bytes() const noexcept override { return free_.size() * 4096; }
  std::uint64_t used_bytes() const noexcept override { return 0; }

private:
  std::byte* base_ = reinterpret_cast<std::byte*>(1ull << 40); // it is never touched
  std::vector<bool> free_;
};

struct fixture {
  static constexpr std::uint32_t count = 8;

  std::shared_ptr<staging_lender> blocks =
    std::make_shared<staging_lender>(std::make_shared<testing::heap_memory_source>(count * 4096));
  std::vector<memory_block> lent;

  // A block that comes back goes to the next request, which may stand in `lent` again.
  ~fixture() {
    while (!lent.empty())
      give_back(lent.size() - 1);
  }

  std::size_t ask(const party& who, int times, std::uint64_t bytes = 4096) {
    auto before = lent.size();
    for (int i = 0; i < times; ++i)
      blocks->ask({who}, bytes, [this](result<memory_block> b) {
        BOOST_REQUIRE_MESSAGE(b, testing::why(b));
        lent.push_back(std::move(*b));
      });
    return lent.size() - before;
  }

  void give_back(std::size_t i) {
    auto block = std::move(lent[i]);
    lent.erase(lent.begin() + static_cast<std::ptrdiff_t>(i));
    block = {};
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(staging_memory, fixture)

BOOST_AUTO_TEST_CASE(a_process_that_keeps_its_blocks_leaves_blocks_to_others) {
  BOOST_TEST(ask(someone(), 20) == 4u);
  BOOST_TEST(ask(someone(), 20) == 2u);
  BOOST_TEST(ask(someone(), 1) == 1u);
}

BOOST_AUTO_TEST_CASE(this_process_may_have_all_blocks_and_each_is_lent_once) {
  BOOST_TEST(ask({}, 20) == count);
  std::set<std::byte*> distinct;
  for (auto& b : lent)
    distinct.insert(b.data);
  BOOST_TEST(distinct.size() == count);
  give_back(0);
  // It went to the next request.
  BOOST_TEST(lent.size() == count);
}

BOOST_AUTO_TEST_CASE(blocks_that_come_back_go_round) {
  auto a = someone(), b = someone();
  ask(a, 20);
  BOOST_TEST(ask(b, 20) == 2u);
  // One of `a` comes back: `b` has fewer.
  give_back(0);
  BOOST_TEST(lent.size() == 6u);
}

BOOST_AUTO_TEST_CASE(a_block_that_nobody_wants_any_more_goes_to_the_next) {
  auto reached = 0;
  ask({}, count);
  blocks->ask({}, 4096, [](const result<memory_block>&) {});
  blocks->ask({}, 4096, [&](const result<memory_block>&) { ++reached; });
  give_back(0);
  BOOST_TEST(reached == 1);
}

BOOST_AUTO_TEST_CASE(a_request_for_which_memory_runs_out_ends_alone_and_no_block_is_lost) {
  auto who = someone("user whose name needs memory of its own");
  for (bool waits : {false, true})
    for (int left = 0; left < 30; ++left) {
      auto memory = std::make_shared<testing::heap_memory_source>(count * 4096);
      blocks = std::make_shared<staging_lender>(memory);
      auto outcomes = 0;
      memory_block got;
      staging_claim claim{who};
      completion<memory_block> granted = [&](result<memory_block> block) {
        ++outcomes;
        if (block)
          got = std::move(*block);
      };
      ask({}, waits ? count : 0);
      std::vector<memory_block> held;
      held.swap(lent);
      allocations_left = left;
      try {
        blocks->ask(std::move(claim), 4096, std::move(granted));
      } catch (const std::bad_alloc&) {
        ++outcomes;
      }
      allocations_left = left;
      if (waits)
        held.back() = {};
      allocations_left = -1;
      BOOST_TEST(outcomes == 1);
      held.clear();
      got = {};
      BOOST_TEST(memory->used_bytes() == 0u);
      BOOST_TEST(ask({}, count) == count);
      lent.clear();
    }
}

BOOST_AUTO_TEST_CASE(more_than_there_is_is_refused_at_once) {
  result<memory_block> got;
  blocks->ask({someone()}, (count + 1) * 4096, [&](result<memory_block> b) { got = std::move(b); });
  BOOST_REQUIRE(!got);
  BOOST_TEST((got.error().code() == errc::no_space));
  BOOST_TEST(got.error().detail().find("36864") != std::string::npos);
}

// Small blocks that come and go would otherwise keep a large one waiting for ever.
BOOST_AUTO_TEST_CASE(who_waits_for_a_large_block_gets_it_before_those_that_come_later) {
  blocks = std::make_shared<staging_lender>(std::make_shared<pieces_source>(count));
  ask({}, count);
  BOOST_TEST(ask({}, 1, 2 * 4096) == 0u);
  give_back(6);
  give_back(4);
  // Two pages are free, but not side by side.
  BOOST_TEST(ask(someone(), 1) == 0u);
  give_back(4);
  BOOST_REQUIRE(lent.size() == 7u);
  BOOST_TEST(lent[lent.size() - 2].size_bytes == 2u * 4096);
  BOOST_TEST(lent.back().size_bytes == 4096u);
}

BOOST_AUTO_TEST_SUITE_END()
