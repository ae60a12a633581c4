// The allocator of staging memory: places, what returns, and threads.
#include <millrace/tests/support/dice.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/transport/memory/staging_pool.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

using namespace millrace;
using namespace millrace::transport;

namespace {

constexpr std::uint64_t size = 1 << 20;

std::shared_ptr<memory_source> pool_of(std::uint64_t size_bytes = size) {
  auto made =
    arena::create({.name = "test", .size_bytes = size_bytes, .huge_pages = false, .lock = false});
  BOOST_TEST_REQUIRE(made.has_value());
  return make_staging_pool(std::move(*made));
}

memory_block take(
  const std::shared_ptr<memory_source>& pool, std::uint64_t bytes, std::size_t border = 64) {
  auto block = pool->allocate(bytes, border);
  BOOST_REQUIRE_MESSAGE(block, testing::why(block));
  return std::move(*block);
}

} // namespace

BOOST_AUTO_TEST_SUITE(staging_pool)

BOOST_AUTO_TEST_CASE(blocks_lie_on_their_borders_and_beside_each_other) {
  auto pool = pool_of();
  std::vector<memory_block> lent;
  for (std::size_t border : {1, 64, 512, 4096, 1, 4096})
    lent.push_back(take(pool, 100, border));
  std::ranges::sort(lent, {}, &memory_block::data);
  for (std::size_t i = 1; i < lent.size(); ++i)
    BOOST_TEST(lent[i - 1].data + 100 <= lent[i].data);
  auto at = take(pool, 100, 4096);
  BOOST_TEST(reinterpret_cast<std::uintptr_t>(at.data) % 4096 == 0u);
  BOOST_TEST(at.size_bytes == 100u);
}

BOOST_AUTO_TEST_CASE(what_returned_can_be_lent_in_one_piece) {
  auto pool = pool_of();
  std::vector<memory_block> lent;
  for (int i = 0; i < 16; ++i)
    lent.push_back(take(pool, size / 16));
  BOOST_TEST(pool->used_bytes() == size);
  // In an order in which each one has a neighbour before it, behind it, both or none.
  for (auto i : {3, 5, 4, 0, 1, 15, 14, 8, 10, 9, 2, 6, 7, 13, 11, 12})
    lent[static_cast<std::size_t>(i)] = {};
  BOOST_TEST(pool->used_bytes() == 0u);
  BOOST_TEST(take(pool, size).size_bytes == size);
}

BOOST_AUTO_TEST_CASE(a_block_is_taken_from_the_smallest_run_that_has_it) {
  auto pool = pool_of();
  std::vector<memory_block> lent;
  for (auto part : {4, 1, 2, 1, 8})
    lent.push_back(take(pool, size / 16 * static_cast<std::uint64_t>(part)));
  auto* small = lent[2].data;
  lent[0] = {};
  lent[2] = {};
  BOOST_TEST(take(pool, size / 16 * 2).data == small);
}

BOOST_AUTO_TEST_CASE(a_refusal_names_what_is_free_and_the_largest_run) {
  auto pool = pool_of();
  std::vector<memory_block> lent;
  for (int i = 0; i < 4; ++i)
    lent.push_back(take(pool, size / 4));
  lent[0] = {};
  lent[2] = {};
  auto refused = pool->allocate(size / 2, 64);
  BOOST_TEST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code() == errc::no_space));
  BOOST_TEST(
    refused.error().detail() ==
    "asked for 524288 bytes of staging memory; free 524288 of 1048576, largest run 262144");
  BOOST_TEST((pool->allocate(~0ull, 64).error().code() == errc::no_space));
}

BOOST_AUTO_TEST_CASE(memory_that_is_lent_outlives_the_pool) {
  auto pool = pool_of();
  auto lent = take(pool, 4096);
  pool.reset();
  std::memset(lent.data, 1, lent.size_bytes);
  BOOST_TEST(std::to_integer<int>(lent.data[4095]) == 1);
}

BOOST_AUTO_TEST_CASE(threads_get_blocks_that_nobody_else_has) {
  auto pool = pool_of();
  std::atomic<int> wrong = 0, got = 0;
  auto work = [&](std::uint64_t seed) {
    testing::dice random{seed};
    auto mark = static_cast<std::byte>(seed);
    std::vector<memory_block> lent;
    for (int i = 0; i < 5000; ++i) {
      if (random.percent(50)) {
        auto block = pool->allocate(random.between(1, size / 16), 64);
        if (!block)
          continue;
        ++got;
        std::memset(block->data, static_cast<int>(seed), block->size_bytes);
        lent.push_back(std::move(*block));
      } else if (!lent.empty()) {
        std::swap(random.one_of(lent), lent.back());
        auto& b = lent.back();
        wrong += std::count(b.data, b.data + b.size_bytes, mark) !=
          static_cast<std::ptrdiff_t>(b.size_bytes);
        lent.pop_back();
      }
    }
  };
  std::vector<std::thread> threads;
  for (std::uint64_t seed = 1; seed <= 4; ++seed)
    threads.emplace_back(work, seed);
  for (auto& t : threads)
    t.join();
  BOOST_TEST(wrong == 0);
  BOOST_TEST(got > 1000);
  BOOST_TEST(pool->used_bytes() == 0u);
}

BOOST_AUTO_TEST_SUITE_END()
