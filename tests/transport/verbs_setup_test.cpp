// Tests the threads that connect and wait for networks: who waits for whom.
#include <millrace/core/future.hpp>
#include <millrace/tests/support/kept_log.hpp>
#include <millrace/transport/verbs/setup_pool.hpp>

#include <boost/test/unit_test.hpp>
#include <pthread.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

using namespace millrace;
using namespace millrace::transport::verbs;
using turn = setup_pool::turn;

namespace {

/// Tasks that tell when they run and, if held, wait until the test lets them go.
struct fixture {
  explicit fixture(std::uint32_t threads_max)
    : owned(setup_pool::start(threads_max).value()), pool(*owned) {}
  // Threads that are held must go on before the pool can end.
  ~fixture() {
    for (auto& gate : gates)
      gate.set(0);
  }

  static int wait(const promise<int>& p) { return p.get_future().get(); }

  promise<int> post(int lane, turn when = turn::first) {
    promise<int> ran;
    pool.post(&lanes[static_cast<std::size_t>(lane)], when, [ran] { ran.set(0); });
    return ran;
  }
  /// Returns when it runs.
  std::size_t hold(int lane, turn when = turn::first) {
    promise<int> began;
    promise<int> gate;
    gates.push_back(gate);
    pool.post(&lanes[static_cast<std::size_t>(lane)], when, [began, gate] {
      began.set(0);
      wait(gate);
    });
    wait(began);
    return gates.size() - 1;
  }

  std::array<char, 16> lanes{};
  std::vector<promise<int>> gates;
  std::shared_ptr<setup_pool> owned;
  setup_pool& pool;
};

bool is_ready(const promise<int>& p) { return p.get_future().wait_for(std::chrono::seconds{0}); }

} // namespace

BOOST_AUTO_TEST_SUITE(verbs_setup)

BOOST_AUTO_TEST_CASE(a_lane_runs_in_order_and_one_at_a_time) {
  fixture t{4};
  std::vector<int> order;
  std::atomic<int> inside = 0;
  std::atomic<bool> met = false;
  for (int i = 0; i < 200; ++i)
    t.pool.post(&t.lanes[0], i % 3 == 0 ? turn::again : turn::first, [&, i] {
      met = met || ++inside != 1;
      order.push_back(i);
      --inside;
    });
  fixture::wait(t.post(0));
  BOOST_TEST(!met);
  BOOST_TEST_REQUIRE(order.size() == 200u);
  for (int i = 0; i < 200; ++i)
    BOOST_TEST(order[static_cast<std::size_t>(i)] == i);
}

BOOST_AUTO_TEST_CASE(a_peer_that_waits_keeps_nobody_else_waiting) {
  fixture t{2};
  t.hold(0);
  auto behind = t.post(0);
  for (int i = 1; i < 10; ++i)
    fixture::wait(t.post(i));
  BOOST_TEST(!is_ready(behind)); // though there was a thread to be had
  t.gates[0].set(0);
  fixture::wait(behind);
}

BOOST_AUTO_TEST_CASE(as_many_peers_wait_side_by_side_as_there_may_be_threads) {
  fixture t{3};
  for (int i = 0; i < 3; ++i)
    t.hold(i);
  auto fourth = t.post(3);
  BOOST_TEST(!is_ready(fourth));
  t.gates[1].set(0);
  fixture::wait(fourth);
}

BOOST_AUTO_TEST_CASE(what_is_tried_again_leaves_a_thread_to_those_who_come) {
  fixture t{3};
  t.hold(0, turn::again);
  t.hold(1, turn::again);
  auto third = t.post(2, turn::again);
  for (int i = 3; i < 10; ++i)
    fixture::wait(t.post(i));
  BOOST_TEST(!is_ready(third));
  t.gates[0].set(0);
  fixture::wait(third);
}

BOOST_AUTO_TEST_CASE(who_comes_goes_before_what_is_tried_again) {
  fixture t{1};
  t.hold(0);
  std::vector<int> order;
  for (int i = 1; i < 7; ++i)
    t.pool.post(
      &t.lanes[static_cast<std::size_t>(i)], i % 2 == 0 ? turn::first : turn::again,
      [&order, i] { order.push_back(i); });
  auto last = t.post(7, turn::again);
  t.gates[0].set(0);
  fixture::wait(last);
  BOOST_TEST((order == std::vector<int>{2, 4, 6, 1, 3, 5}));
}

BOOST_AUTO_TEST_CASE(where_no_thread_more_can_be_had_those_that_run_do_it_all) {
  testing::kept_log lines;
  fixture t{4};
  t.hold(0);
  pthread_attr_t usual;
  pthread_getattr_default_np(&usual);
  auto huge = usual;
  BOOST_TEST_REQUIRE(pthread_attr_setstacksize(&huge, std::size_t{1} << 47) == 0);
  BOOST_TEST_REQUIRE(pthread_setattr_default_np(&huge) == 0);
  auto behind = t.post(1);
  pthread_setattr_default_np(&usual);
  BOOST_TEST(lines.count("starting a thread that connects RDMA") == 1u, lines.text());
  BOOST_TEST(!is_ready(behind));
  t.gates[0].set(0);
  fixture::wait(behind);
}

BOOST_AUTO_TEST_CASE(stopping_waits_for_what_runs_and_drops_the_rest) {
  auto token = std::make_shared<int>(0);
  std::weak_ptr<int> dropped = token;
  std::atomic<bool> ended = false;
  auto owned = setup_pool::start(1).value();
  auto& pool = *owned;
  promise<int> began;
  char lane = 0;
  pool.post(&lane, turn::first, [&, began] {
    began.set(0);
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
    ended = true;
  });
  fixture::wait(began);
  pool.post(&lane, turn::first, [token = std::move(token)] { BOOST_TEST(false); });
  pool.stop();
  BOOST_TEST(ended);
  BOOST_TEST(dropped.expired());
  pool.post(&lane, turn::first, [] { BOOST_TEST(false); });
  pool.stop();
}

BOOST_AUTO_TEST_SUITE_END()
