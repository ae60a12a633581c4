// Staging memory that several processes use: shares, turns, and what comes back.
#include <millrace/actors/staging/shared_places.hpp>
#include <millrace/actors/staging/staging_blocks.hpp>
#include <millrace/tests/support/heap_memory_source.hpp>

#include <boost/test/unit_test.hpp>

#include <set>
#include <utility>
#include <vector>

using namespace millrace;
using namespace millrace::actors;

namespace {

party someone(const std::string& owner = "user 1") { return {owner, random_id<peer_id>()}; }

struct fixture {
  static constexpr std::uint32_t count = 8;

  testing::heap_memory_source memory{1 << 20};
  std::shared_ptr<staging_blocks> blocks = staging_blocks::make(memory, 4096, count).value();
  std::vector<memory_block> lent;

  // A block that comes back goes to the next request, which may stand in `lent` again.
  ~fixture() {
    while (!lent.empty())
      give_back(lent.size() - 1);
  }

  std::size_t lease(const party& who, int times) {
    auto before = lent.size();
    for (int i = 0; i < times; ++i)
      blocks->lease(who, [this](result<memory_block> b) { lent.push_back(*b); });
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
  BOOST_TEST(lease(someone(), 20) == 4u);
  BOOST_TEST(lease(someone(), 20) == 2u);
  BOOST_TEST(lease(someone(), 1) == 1u);
}

BOOST_AUTO_TEST_CASE(this_process_may_have_all_blocks_and_each_is_lent_once) {
  BOOST_TEST(lease({}, 20) == count);
  std::set<std::byte*> distinct;
  for (auto& b : lent)
    distinct.insert(b.data);
  BOOST_TEST(distinct.size() == count);
  auto taken = lent[0].data;
  give_back(0);
  // It went to the next request.
  BOOST_TEST(lent.size() == count);
  BOOST_TEST(lent.back().data == taken);
}

BOOST_AUTO_TEST_CASE(blocks_that_come_back_go_round) {
  auto a = someone(), b = someone();
  lease(a, 20);
  BOOST_TEST(lease(b, 20) == 2u);
  // One of `a` comes back: `b` has fewer.
  give_back(0);
  BOOST_TEST(lent.size() == 6u);
}

BOOST_AUTO_TEST_CASE(more_places_than_there_are_means_all_of_them) {
  auto places = std::make_shared<shared_places>(4);
  std::vector<std::shared_ptr<void>> held;
  auto keep = [&](result<std::shared_ptr<void>> place) { held.push_back(*place); };
  places->ask(someone(), 100, keep);
  BOOST_TEST(held.size() == 1u);
  places->ask(someone(), 100, keep);
  BOOST_TEST(held.size() == 1u);
  auto first = std::exchange(held, {});
  first.clear();
  BOOST_TEST(held.size() == 1u);
}

BOOST_AUTO_TEST_SUITE_END()
