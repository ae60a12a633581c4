// Tests shares of places: what one process or owner can take, what remains for others, and whose
// turn it is.
#include <millrace/core/fair_shares.hpp>

#include <boost/test/unit_test.hpp>

#include <thread>
#include <vector>

using namespace millrace;

namespace {

party process_of(const std::string& owner) { return {owner, random_id<peer_id>()}; }

std::uint64_t take_all(fair_shares& shares, const party& who) {
  std::uint64_t taken = 0;
  while (shares.take(who))
    ++taken;
  return taken;
}

} // namespace

BOOST_AUTO_TEST_SUITE(fair_shares_tests)

BOOST_AUTO_TEST_CASE(one_process_takes_half_and_leaves_places_for_every_next_one) {
  fair_shares shares{64};
  BOOST_TEST(take_all(shares, process_of("user 1")) == 32u);
  BOOST_TEST(take_all(shares, process_of("user 2")) == 16u);
  for (int i = 3; i < 19; ++i)
    BOOST_TEST(shares.take(process_of("user " + std::to_string(i))));
}

BOOST_AUTO_TEST_CASE(places_that_come_back_go_to_others_first) {
  fair_shares shares{10};
  auto greedy = process_of("user 1"), late = process_of("user 2");
  BOOST_TEST(take_all(shares, greedy) == 5u);
  BOOST_TEST(take_all(shares, late) == 3u);
  shares.give_back(greedy);
  BOOST_TEST(!shares.fits(greedy));
  BOOST_TEST(!shares.fits(late));
  shares.give_back(greedy);
  BOOST_TEST(shares.take(late));
  BOOST_TEST(!shares.fits(greedy));
}

BOOST_AUTO_TEST_CASE(many_processes_of_one_user_leave_an_eighth_to_other_users) {
  fair_shares shares{256};
  std::uint64_t taken = 0;
  while (shares.take(process_of("user 1")))
    ++taken;
  BOOST_TEST(taken == 224u);
  BOOST_TEST(shares.take(process_of("user 2")));
}

BOOST_AUTO_TEST_CASE(
  a_fourth_process_of_a_user_waits_for_three_greedy_ones_and_other_users_do_not) {
  fair_shares shares{64};
  std::vector<party> greedy;
  for (auto most : {32u, 16u, 8u})
    BOOST_TEST(take_all(shares, greedy.emplace_back(process_of("user 1"))) == most);
  auto fourth = process_of("user 1");
  BOOST_TEST(!shares.fits(fourth));
  BOOST_TEST(shares.take(process_of("user 2")));
  // One of the three ends.
  shares.give_back(greedy[0], 32);
  BOOST_TEST(shares.take(fourth));
}

BOOST_AUTO_TEST_CASE(kept_places_are_for_the_privileged_only) {
  fair_shares shares{100, 5};
  for (int i = 0; i < 95; ++i)
    BOOST_TEST_REQUIRE(shares.take(process_of("user " + std::to_string(i))));
  BOOST_TEST(!shares.take(process_of("user 95")));
  auto root = process_of("user 0");
  root.privileged = true;
  BOOST_TEST(shares.take(root));
}

BOOST_AUTO_TEST_CASE(this_process_is_bound_by_the_number_of_places_only) {
  fair_shares shares{8};
  BOOST_TEST(take_all(shares, party{}) == 8u);
  BOOST_TEST(shares.taken() == 8u);
  shares.give_back({}, 8);
  BOOST_TEST(shares.taken() == 0u);
}

BOOST_AUTO_TEST_CASE(the_first_places_of_a_party_fit_whenever_they_are_free) {
  fair_shares shares{1};
  BOOST_TEST(shares.fits(process_of("user 1")));
  fair_shares bytes{100};
  auto a = process_of("user 1");
  BOOST_TEST(bytes.take(a, 80));
  BOOST_TEST(!bytes.take(a, 10));
  BOOST_TEST(bytes.take(process_of("user 1"), 20));
  BOOST_TEST(!fair_shares{0}.fits(a));
}

BOOST_AUTO_TEST_CASE(lent_places_come_back_with_the_last_copy_on_any_thread) {
  auto places = std::make_shared<lent_places>(8, "cups (kitchen.cups_max)");
  auto a = process_of("user 1");
  auto held = *places->lend(a, 4);
  auto copy = held;
  auto refused = places->lend(a);
  BOOST_TEST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code() == errc::busy));
  BOOST_TEST(refused.error().detail().find("kitchen.cups_max") != std::string::npos);
  held.reset();
  BOOST_TEST(places->taken() == 4u);
  std::thread{[last = std::move(copy)]() mutable { last.reset(); }}.join();
  BOOST_TEST(places->taken() == 0u);
}

BOOST_AUTO_TEST_CASE(processes_take_turns_and_keep_their_own_order) {
  fair_queue<int> queue;
  auto a = process_of("user 1"), b = process_of("user 1");
  for (int i = 0; i < 3; ++i)
    queue.push(a, i);
  queue.push(b, 10);
  std::vector<int> order;
  while (auto next = queue.next([](auto&, auto&) { return true; }))
    order.push_back(*next);
  BOOST_TEST(order == (std::vector<int>{0, 10, 1, 2}), boost::test_tools::per_element());
  BOOST_TEST(queue.empty());
}

BOOST_AUTO_TEST_CASE(what_is_removed_from_a_queue_gets_no_turn) {
  fair_queue<int> queue;
  auto a = process_of("user 1"), b = process_of("user 1");
  for (int i = 0; i < 3; ++i)
    queue.push(a, i);
  queue.push(b, 10);
  BOOST_TEST((queue.remove([](int item) { return item == 1; }) == 1));
  BOOST_TEST((queue.remove([](int item) { return item == 10; }) == 10));
  BOOST_TEST(!queue.remove([](int item) { return item == 10; }).has_value());
  BOOST_TEST(queue.size() == 2u);
  std::vector<int> order;
  while (auto next = queue.next([](auto&, auto&) { return true; }))
    order.push_back(*next);
  BOOST_TEST(order == (std::vector<int>{0, 2}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_process_that_may_not_go_on_lets_the_others_pass) {
  fair_queue<int> queue;
  auto a = process_of("user 1"), b = process_of("user 1");
  queue.push(a, 0);
  queue.push(b, 10);
  auto next = queue.next([&](auto& who, auto&) { return !(who == a); });
  BOOST_TEST_REQUIRE(next.has_value());
  BOOST_TEST(*next == 10);
  BOOST_TEST(!queue.next([&](auto& who, auto&) { return !(who == a); }).has_value());
  BOOST_TEST(queue.size() == 1u);
}

BOOST_AUTO_TEST_SUITE_END()
