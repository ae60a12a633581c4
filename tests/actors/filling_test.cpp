// Tests through sessions how several clients fill one set: who may join, what each of them is
// given, and what becomes of the blocks and the memory of one that is gone.
#include "data_world.hpp"

#include <boost/test/unit_test.hpp>

#include <chrono>
#include <vector>

using namespace millrace;
using namespace millrace::actors;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t region = heap_data_memory::region_bytes, blocks = 8;

struct filling_world : data_world {
  filling_world() {
    helper->frame_bytes_max = 1 << 20;
    helper->set_user(1000);
  }

  set_reservation reserved() { return ask(some_set("s", 2000, 7)).value(); }
  /// The leader has claimed a block.
  set_reservation begun() {
    auto out = reserved();
    BOOST_TEST((ask(wants(out.number, 1)).value().blocks == block_range{0, 1}));
    return out;
  }
  join_set_request joining(std::uint64_t source = 7) {
    return {some_set("s", 2000, source).set, 0};
  }
  static claim_blocks_request wants(
    std::uint64_t number, std::uint32_t count, std::vector<written_blocks> written = {}) {
    return {number, blocks, 5, blocks, count, std::move(written), 0};
  }
  static bool is_writable(const set_reservation& set) {
    auto& one = set.regions.at(0);
    return transport::find_region(one.region, one.key, access_mode::write).has_value();
  }

  channel_ptr helper = std::make_shared<answering_channel>(random_id<peer_id>(), "helper");
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(fillings, filling_world)

BOOST_AUTO_TEST_CASE(a_set_is_filled_by_two_clients) {
  auto leads = begun();
  auto joined = ask(joining(), helper).value();
  BOOST_TEST((joined.set == leads.set));
  BOOST_TEST(!joined.exists);
  BOOST_TEST_REQUIRE(joined.regions.size() == 2u);
  BOOST_TEST(size_bytes(joined.regions[0]) == region);
  BOOST_TEST((joined.regions[0].key != leads.regions[0].key)); // of its own
  BOOST_TEST(is_writable(joined));
  auto theirs = ask(wants(joined.number, 8), helper).value();
  BOOST_TEST((theirs == claimed_blocks{{1, 1}, true, 6, 1, 0}));
  auto more = ask(wants(leads.number, 8, {{{0, 1}, 300}})).value();
  BOOST_TEST((more == claimed_blocks{{2, 1}, true, 5, 1, 300}));
  BOOST_TEST((refusal(publish_set_request{leads.number}) == errc::invalid_argument));
  std::vector<written_blocks> written{{{1, 1}, 300}};
  for (auto left = 5; left > 0; --left) {
    auto next = ask(wants(joined.number, 8, written), helper).value().blocks;
    BOOST_TEST_REQUIRE(next.count == 1u);
    written = {{next, 300}};
  }
  BOOST_TEST((ask(wants(joined.number, 8, written), helper).value().elsewhere == 1u));
  auto last = ask(wants(leads.number, 8, {{{2, 1}, 300}})).value();
  BOOST_TEST((last == claimed_blocks{{}, false, 0, 0, 2400}));
  BOOST_TEST(bytes.memory.joins->now == 1u);
  BOOST_TEST((refusal(publish_set_request{leads.number}) == errc::ok));
  BOOST_TEST(!is_writable(joined));
  BOOST_TEST(!is_writable(leads));
  BOOST_TEST((refusal(wants(joined.number, 8), helper) == errc::not_found));
  BOOST_TEST((refusal(close_set_request{joined.number}, helper) == errc::ok));
  BOOST_TEST(bytes.memory.joins->now == 0u);
  BOOST_TEST(bytes.memory.joins->all == 1u);
  BOOST_TEST(bytes.memory.leases->taken() == 0u);
}

BOOST_AUTO_TEST_CASE(a_client_without_claims_fills_a_set_as_before) {
  auto leads = reserved();
  BOOST_TEST((refusal(joining(), helper) == errc::busy));
  BOOST_TEST((refusal(publish_set_request{leads.number}) == errc::ok));
  BOOST_TEST((refusal(joining(), helper) == errc::not_found));
}

// It could still write, if others wrote its blocks before its memory is withdrawn.
BOOST_AUTO_TEST_CASE(blocks_of_a_lost_client_are_claimed_once_it_can_write_no_more) {
  auto leads = begun();
  auto joined = ask(joining(), helper).value();
  BOOST_TEST((ask(wants(joined.number, 8), helper).value().blocks == block_range{1, 1}));
  auto held = hold_mover();
  session_of(*helper).on_close(*helper, {errc::peer_lost, "gone"});
  sessions.erase(helper.get());
  run();
  BOOST_TEST((ask(wants(leads.number, 1)).value().blocks == block_range{2, 1}));
  held = nullptr;
  settle();
  BOOST_TEST(!is_writable(joined));
  BOOST_TEST(is_writable(leads));
  BOOST_TEST((ask(wants(leads.number, 1)).value().blocks == block_range{1, 1}));
  BOOST_TEST(bytes.memory.joins->now == 0u);
}

BOOST_AUTO_TEST_CASE(a_client_may_leave_and_join_again) {
  auto leads = begun();
  auto joined = ask(joining(), helper).value();
  BOOST_TEST((ask(wants(joined.number, 8), helper).value().blocks == block_range{1, 1}));
  BOOST_TEST((refusal(close_set_request{joined.number}, helper) == errc::ok));
  settle();
  BOOST_TEST((refusal(wants(joined.number, 8), helper) == errc::not_found));
  auto again = ask(joining(), helper).value();
  BOOST_TEST(again.number != joined.number);
  BOOST_TEST((ask(wants(again.number, 8), helper).value().blocks == block_range{1, 1}));
}

BOOST_AUTO_TEST_CASE(a_connection_joins_a_filling_once) {
  begun();
  auto joined = ask(joining(), helper).value();
  BOOST_TEST((refusal(joining(), helper) == errc::busy));
  BOOST_TEST(bytes.memory.joins->now == 1u);
  BOOST_TEST(is_writable(joined));
  BOOST_TEST((refusal(close_set_request{joined.number}, helper) == errc::ok));
  BOOST_TEST((refusal(joining(), helper) == errc::ok));
}

// It lives, and its connection, too.
BOOST_AUTO_TEST_CASE(blocks_of_a_client_that_stands_still_are_claimed_by_one_that_has_no_others) {
  auto leads = begun();
  auto joined = ask(joining(), helper).value();
  BOOST_TEST((ask(wants(joined.number, 8), helper).value().blocks == block_range{1, 1}));
  sched.advance_time(61s);
  auto next = ask(wants(leads.number, 8, {{{0, 1}, 1}})).value();
  while (next.blocks.count > 0) {
    BOOST_TEST(is_writable(joined)); // there is something else to do
    next = ask(wants(leads.number, 8, {{next.blocks, 1}})).value();
  }
  BOOST_TEST(next.elsewhere == 1u);
  settle();
  BOOST_TEST(!is_writable(joined));
  BOOST_TEST((refusal(wants(joined.number, 8, {{{1, 1}, 1}}), helper) == errc::not_found));
  BOOST_TEST((ask(wants(leads.number, 8)).value().blocks == block_range{1, 1}));
  auto again = ask(joining(), helper).value();
  BOOST_TEST((refusal(wants(leads.number, 8, {{{1, 1}, 1}})) == errc::ok));
  BOOST_TEST(is_writable(again));
  BOOST_TEST((refusal(publish_set_request{leads.number}) == errc::ok));
}

BOOST_AUTO_TEST_CASE(a_client_that_goes_on_keeps_its_blocks) {
  auto leads = begun();
  auto joined = ask(joining(), helper).value();
  auto own = ask(wants(joined.number, 8), helper).value().blocks;
  for (block_range next{0, 1}; next.count > 0;)
    next = ask(wants(leads.number, 8, {{next, 1}})).value().blocks;
  sched.advance_time(59s);
  BOOST_TEST(ask(wants(leads.number, 8)).value().elsewhere == 1u);
  settle();
  BOOST_TEST(is_writable(joined));
  BOOST_TEST((refusal(wants(joined.number, 8, {{own, 1}}), helper) == errc::ok));
  sched.advance_time(61s);
  BOOST_TEST((refusal(wants(leads.number, 8)) == errc::ok));
  settle();
  BOOST_TEST(is_writable(joined)); // it has none
}

BOOST_AUTO_TEST_CASE(a_filling_ends_with_the_client_that_has_reserved_the_set) {
  auto leads = begun();
  auto joined = ask(joining(), helper).value();
  lose(channel);
  BOOST_TEST(!is_writable(joined));
  BOOST_TEST(used() == 0u);
  BOOST_TEST((refusal(wants(joined.number, 8), helper) == errc::not_found));
  BOOST_TEST((refusal(joining(), helper) == errc::not_found));
  auto next = ask(some_set("s", 2000, 7), helper); // and it may begin anew
  BOOST_TEST((next && !next->exists));
}

BOOST_AUTO_TEST_CASE(who_is_gone_before_its_joining_is_seen_has_not_joined) {
  auto leads = begun();
  bring(*helper, encode_request<data_service>(data_server_of_node, joining()));
  lose(helper);
  BOOST_TEST(bytes.memory.joins->all == 1u);
  BOOST_TEST(bytes.memory.joins->now == 0u);
  BOOST_TEST(bytes.memory.leases->taken() == 1u);
  BOOST_TEST((ask(wants(leads.number, 1)).value().elsewhere == 0u));
}

BOOST_AUTO_TEST_CASE(nobody_has_blocks_that_it_has_not_claimed) {
  auto leads = begun();
  auto joined = ask(joining(), helper).value();
  BOOST_TEST((refusal(wants(joined.number, 8, {{{0, 1}, 1}}), helper) == errc::not_found));
  BOOST_TEST((refusal(wants(joined.number, 8, {{{7, 9}, 1}}), helper) == errc::not_found));
  BOOST_TEST((refusal(wants(leads.number, 8), helper) == errc::not_found)); // another's number
  BOOST_TEST((refusal(wants(joined.number, 8)) == errc::not_found));
  BOOST_TEST((refusal(publish_set_request{joined.number}, helper) == errc::not_found));
  auto other_cut = wants(joined.number, 8);
  other_cut.cut = 6;
  BOOST_TEST((refusal(other_cut, helper) == errc::invalid_argument));
  other_cut = wants(joined.number, 8);
  other_cut.blocks = 9;
  BOOST_TEST((refusal(other_cut, helper) == errc::invalid_argument));
}

BOOST_AUTO_TEST_CASE(only_the_owner_joins_with_the_same_files) {
  begun();
  BOOST_TEST((refusal(joining(), other) == errc::permission_denied));
  BOOST_TEST((refusal(joining(8), helper) == errc::already_exists));
  auto more = joining();
  more.set.samples = 2001;
  BOOST_TEST((refusal(more, helper) == errc::already_exists));
  auto window = joining();
  window.set.window_bytes = region;
  BOOST_TEST((refusal(window, helper) == errc::already_exists));
  auto none = joining();
  none.set.name = "t";
  BOOST_TEST((refusal(none, helper) == errc::not_found));
  none.set.fields.clear();
  none.set.name = "s";
  BOOST_TEST((refusal(none, helper) == errc::invalid_argument));
  BOOST_TEST(bytes.memory.leases->taken() == 1u);
}

BOOST_AUTO_TEST_CASE(a_part_is_joined_by_its_division) {
  auto part = some_set("s", 1000, 7);
  auto& division = part.set.division;
  division.whole = random_id<set_id>();
  division.index = 1;
  division.nodes = {"n1", "n0"};
  division.samples = 2000;
  division.fields = {{2'000'000, 2'000'000}};
  auto leads = ask(part).value();
  BOOST_TEST(ask(wants(leads.number, 1)).has_value());
  BOOST_TEST((refusal(joining(), helper) == errc::already_exists)); // it is not the first part
  join_set_request asked{part.set, 0};
  asked.set.division.whole = random_id<set_id>();
  BOOST_TEST((refusal(asked, helper) == errc::already_exists));
  asked.set.division.whole = division.whole;
  BOOST_TEST((ask(asked, helper).value().set == leads.set));
  for (block_range next{0, 1}; next.count > 0;)
    next = ask(wants(leads.number, 8, {{next, 1}})).value().blocks;
  BOOST_TEST((refusal(publish_set_request{leads.number}) == errc::ok));
  auto there = ask(asked, helper).value();
  BOOST_TEST(there.exists);
  BOOST_TEST(there.regions.empty());
}

BOOST_AUTO_TEST_SUITE_END()
