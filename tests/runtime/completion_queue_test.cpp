// Futures that become ready while nobody waits for them, seen through a descriptor.
#include "three_providers.hpp"

#include <millrace/runtime/client/completion_queue.hpp>
#include <millrace/runtime/node/node.hpp>
#include <millrace/tests/support/descriptors.hpp>

#include <boost/test/unit_test.hpp>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

using namespace millrace;
using namespace std::chrono_literals;

namespace {

using tokens = std::vector<std::uint64_t>;

constexpr int generous_ms = 60'000;

bool readable(const completion_queue& queue, int timeout_ms = 0) {
  pollfd watched{queue.descriptor(), POLLIN, 0};
  return ::poll(&watched, 1, timeout_ms) == 1 && watched.revents == POLLIN;
}

tokens taken(const completion_queue& queue, std::size_t room = 100) {
  tokens some(room);
  some.resize(queue.poll(some));
  return some;
}

void post(const completion_queue& queue, const promise<int>& p, std::uint64_t token) {
  BOOST_REQUIRE(queue.post_when_ready(p.get_future(), token).ok());
}

/// Sees the events of a descriptor as an event loop does.
class event_loop {
public:
  event_loop(int fd, std::uint32_t events) {
    epoll_event event{};
    event.events = events;
    BOOST_REQUIRE(::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0);
  }
  ~event_loop() { ::close(epoll_); }
  event_loop(const event_loop&) = delete;
  event_loop& operator=(const event_loop&) = delete;

  bool event(int timeout_ms = 0) const {
    epoll_event event{};
    return ::epoll_wait(epoll_, &event, 1, timeout_ms) == 1;
  }

private:
  int epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
};

/// Permits this process no new descriptor.
class no_descriptors {
public:
  no_descriptors() {
    BOOST_REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    auto none = before_;
    none.rlim_cur = 0;
    BOOST_REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  ~no_descriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  no_descriptors(const no_descriptors&) = delete;
  no_descriptors& operator=(const no_descriptors&) = delete;

private:
  rlimit before_{};
};

} // namespace

BOOST_AUTO_TEST_SUITE(completion_queues)

BOOST_AUTO_TEST_CASE(tokens_come_in_the_order_in_which_futures_become_ready) {
  auto queue = completion_queue::open().value();
  promise<int> first, second, third;
  post(queue, first, 1);
  post(queue, second, ~0ull);
  post(queue, third, 3);
  BOOST_TEST((taken(queue) == tokens{}));
  third.set(0);
  first.set(0);
  BOOST_TEST((taken(queue) == tokens{3, 1}));
  second.set(0);
  BOOST_TEST((taken(queue) == tokens{~0ull}));
  BOOST_TEST((taken(queue) == tokens{}));
}

BOOST_AUTO_TEST_CASE(a_future_that_is_ready_is_in_the_queue_at_once) {
  auto queue = completion_queue::open().value();
  BOOST_TEST(queue.post_when_ready(ready_future<std::string>("x"), 8).ok());
  BOOST_TEST((taken(queue) == tokens{8}));
}

BOOST_AUTO_TEST_CASE(futures_that_fail_are_cancelled_or_dropped_are_ready_too) {
  auto queue = completion_queue::open().value();
  std::optional<promise<int>> dropped{std::in_place};
  promise<int> failed;
  promise<void> cancelled;
  post(queue, *dropped, 1);
  post(queue, failed, 2);
  BOOST_TEST(queue.post_when_ready(cancelled.get_future(), 3).ok());
  dropped.reset();
  failed.set(fail(errc::peer_lost, "gone"));
  cancelled.get_future().cancel();
  BOOST_TEST((taken(queue) == tokens{1, 2, 3}));
}

BOOST_AUTO_TEST_CASE(the_descriptor_is_readable_exactly_while_there_are_tokens) {
  auto queue = completion_queue::open().value();
  for (int round = 0; round < 3; ++round) {
    BOOST_TEST(!readable(queue));
    promise<int> a, b;
    post(queue, a, 1);
    post(queue, b, 2);
    BOOST_TEST(!readable(queue));
    a.set(0);
    BOOST_TEST(readable(queue));
    b.set(0);
    BOOST_TEST((taken(queue, 0) == tokens{}));
    BOOST_TEST(readable(queue));
    BOOST_TEST((taken(queue, 1) == tokens{1}));
    BOOST_TEST(readable(queue));
    BOOST_TEST((taken(queue, 1) == tokens{2}));
  }
  BOOST_TEST(!readable(queue));
}

BOOST_AUTO_TEST_CASE(an_edge_comes_whenever_the_empty_queue_gets_a_token) {
  auto queue = completion_queue::open().value();
  event_loop levels{queue.descriptor(), EPOLLIN};
  event_loop edges{queue.descriptor(), EPOLLIN | EPOLLET};
  for (std::uint64_t round = 0; round < 3; ++round) {
    BOOST_TEST(!edges.event());
    BOOST_TEST(!levels.event());
    for (std::uint64_t i = 0; i < 2; ++i) {
      BOOST_REQUIRE(queue.post_when_ready(ready_future<int>(0), 2 * round + i).ok());
      BOOST_TEST(levels.event());
      BOOST_TEST(edges.event() == (i == 0));
    }
    BOOST_TEST((taken(queue) == tokens{2 * round, 2 * round + 1}));
  }
}

BOOST_AUTO_TEST_CASE(nothing_is_lost_between_a_thread_that_posts_and_one_that_polls) {
  constexpr std::uint64_t count = 10'000;
  auto queue = completion_queue::open(64).value();
  std::thread posts{[queue] {
    for (std::uint64_t i = 0; i < count; ++i) {
      promise<std::uint64_t> p;
      while (!queue.post_when_ready(p.get_future(), i).ok())
        std::this_thread::yield();
      p.set(i);
    }
  }};
  tokens all;
  // As an event loop does: one turn for each time that the descriptor is readable.
  while (all.size() < count && readable(queue, generous_ms)) {
    auto some = taken(queue, 7);
    all.insert(all.end(), some.begin(), some.end());
  }
  BOOST_TEST(all.size() == count);
  // Or the thread would go on without end.
  while (all.size() < count)
    all.push_back(taken(queue).size());
  posts.join();
  tokens expected(count);
  std::iota(expected.begin(), expected.end(), 0u);
  BOOST_TEST((all == expected));
  BOOST_TEST(!readable(queue));
}

BOOST_AUTO_TEST_CASE(each_token_goes_to_one_of_several_threads_that_wait) {
  constexpr std::uint64_t count = 5'000;
  auto queue = completion_queue::open(count + 4).value();
  std::array<tokens, 4> seen;
  std::vector<std::thread> waiters;
  for (auto& mine : seen)
    waiters.emplace_back([queue, &mine] {
      std::array<std::uint64_t, 3> some{};
      auto limit = steady_clock::now() + std::chrono::milliseconds{generous_ms};
      while (auto n = queue.wait(some, limit)) {
        auto end = some.begin() + static_cast<std::ptrdiff_t>(n);
        mine.insert(mine.end(), some.begin(), std::find(some.begin(), end, ~0ull));
        // The last tokens end one thread each.
        auto extra = std::count(some.begin(), end, ~0ull);
        for (; extra > 1; --extra)
          static_cast<void>(queue.post_when_ready(ready_future<int>(0), ~0ull));
        if (extra == 1)
          return;
      }
    });
  for (std::uint64_t i = 0; i < count; ++i)
    BOOST_REQUIRE(queue.post_when_ready(ready_future<int>(0), i).ok());
  for (std::size_t i = 0; i < seen.size(); ++i)
    BOOST_REQUIRE(queue.post_when_ready(ready_future<int>(0), ~0ull).ok());
  for (auto& t : waiters)
    t.join();
  tokens all;
  for (auto& mine : seen)
    all.insert(all.end(), mine.begin(), mine.end());
  std::sort(all.begin(), all.end());
  tokens expected(count);
  std::iota(expected.begin(), expected.end(), 0u);
  BOOST_TEST((all == expected));
}

BOOST_AUTO_TEST_CASE(a_wait_ends_with_a_token_or_at_its_deadline) {
  auto queue = completion_queue::open().value();
  std::array<std::uint64_t, 4> some{};
  BOOST_TEST(queue.wait(some, steady_clock::now() - 1s) == 0u);
  BOOST_TEST(queue.wait(some, steady_clock::now() + 5ms) == 0u);
  BOOST_TEST(queue.wait({}, time_point::max()) == 0u);
  promise<int> p;
  post(queue, p, 6);
  std::thread setter{[p] { p.set(0); }};
  BOOST_TEST(queue.wait(some, time_point::max()) == 1u);
  BOOST_TEST(some[0] == 6u);
  setter.join();
  BOOST_TEST(!readable(queue));
}

BOOST_AUTO_TEST_CASE(a_future_beyond_the_bound_is_refused_until_a_token_is_taken) {
  auto queue = completion_queue::open(2).value();
  promise<int> a, b, c;
  post(queue, a, 1);
  post(queue, b, 2);
  auto refused = queue.post_when_ready(c.get_future(), 3);
  BOOST_TEST((refused.code() == errc::busy));
  BOOST_TEST(refused.detail().find("2 tokens of at most 2, 0 of them ready") != std::string::npos);
  // What is ready has its place until it is taken.
  a.set(0);
  BOOST_TEST((queue.post_when_ready(c.get_future(), 3).code() == errc::busy));
  BOOST_TEST((taken(queue) == tokens{1}));
  post(queue, c, 3);
  // The refused ones left nothing behind.
  c.set(0);
  b.set(0);
  BOOST_TEST((taken(queue) == tokens{3, 2}));
}

BOOST_AUTO_TEST_CASE(tokens_of_a_closed_queue_go_nowhere) {
  std::size_t while_open = 0;
  promise<int> p;
  {
    auto queue = completion_queue::open().value();
    auto copy = queue;
    post(queue, p, 1);
    while_open = testing::open_descriptors();
  }
  BOOST_TEST(testing::open_descriptors() < while_open);
  BOOST_TEST(p.set(0));
  BOOST_TEST(p.get_future().get() == 0);
}

BOOST_AUTO_TEST_CASE(a_queue_may_be_closed_while_tokens_come) {
  auto before = testing::open_descriptors();
  for (int round = 0; round < 200; ++round) {
    std::optional queue{completion_queue::open().value()};
    std::vector<promise<int>> all(20);
    for (auto& p : all)
      post(*queue, p, 1);
    std::atomic<bool> begun = false;
    std::thread setter{[&] {
      begun = true;
      for (auto& p : all)
        p.set(0);
    }};
    while (!begun)
      std::this_thread::yield();
    queue.reset();
    setter.join();
  }
  // Objects of tests before this one may have ended meanwhile, on another thread.
  BOOST_TEST(testing::open_descriptors() <= before);
}

BOOST_AUTO_TEST_CASE(a_process_without_descriptors_is_told_so) {
  std::optional<result<completion_queue>> opened;
  {
    no_descriptors limited;
    opened.emplace(completion_queue::open());
  }
  BOOST_REQUIRE(!opened->has_value());
  BOOST_TEST((opened->error().code() == errc::io_error));
  BOOST_TEST(opened->error().detail().find("ulimit -n") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_program_that_only_watches_the_descriptor_makes_progress) {
  testing::three_providers disk;
  auto serving = node::start_async(disk.settings).get();
  auto asking = client::connect(serving->address());
  auto queue = completion_queue::open().value();
  for (int round = 0; round < 3; ++round) {
    auto stored = asking.repository("kept").store("net", disk.tensors());
    BOOST_REQUIRE(queue.post_when_ready(stored, 9).ok());
    BOOST_REQUIRE(readable(queue, generous_ms));
    BOOST_TEST((taken(queue) == tokens{9}));
    BOOST_TEST(stored.result().has_value());
  }
}

BOOST_AUTO_TEST_SUITE_END()
