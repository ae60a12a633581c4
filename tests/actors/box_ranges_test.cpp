// How many ranges the loads of boxes may keep.
#include "store_fixture.hpp"

#include <boost/test/unit_test.hpp>

namespace millrace::actors {

namespace {

struct box_store : testing::store_fixture {
  static constexpr std::uint64_t row = 300'000; // so that the rows of a column are ranges each

  box_store() {
    limits.box_runs_max = 3;
    restart();
    auto r = request("m", 3 * row);
    r.spec.tensors.tensors = {{"t", dtype::u8, {3, row}}};
    auto storing = ask(r);
    fabric->finish();
    sched.run();
    BOOST_REQUIRE(outcome<store_receipt>(storing));
  }

  /// Asks for the first byte of so many rows.
  auto load_column(const asker& who, std::uint64_t rows) {
    load_request l;
    l.model = "m";
    l.selections = {{{"t", dtype::u8, {rows, 1}}, true, selection::no_row, {0, 0}}};
    l.target.length_bytes = rows;
    l.timeout_ms = 1000;
    l.from = who;
    return ask(l);
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(box_ranges, box_store)

BOOST_AUTO_TEST_CASE(loads_of_all_processes_share_the_ranges_and_give_them_back) {
  auto one = testing::process_of("user 1"), other = testing::process_of("user 2");
  auto first = load_column(one, 2);
  auto second = load_column(other, 2);
  auto refused = outcome<load_reply>(second);
  BOOST_TEST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code() == errc::busy));
  BOOST_TEST(refused.error().detail().find("limits.box_runs_max") != std::string::npos);
  auto third = load_column(other, 1);
  fabric->finish();
  sched.run();
  BOOST_TEST(outcome<load_reply>(first).has_value());
  fabric->finish();
  sched.run();
  BOOST_TEST(outcome<load_reply>(third).has_value());
  // What is free belongs to the first one that asks.
  auto fourth = load_column(other, 3);
  fabric->finish();
  sched.run();
  BOOST_TEST(outcome<load_reply>(fourth).has_value());
}

BOOST_AUTO_TEST_SUITE_END()

} // namespace millrace::actors
