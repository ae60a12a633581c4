// Tests futures: waiting, continuations, coroutines, gathering, cancelling, dropping.
#include <millrace/core/future.hpp>

#include <boost/test/unit_test.hpp>

#include <thread>
#include <utility>
#include <vector>

using namespace millrace;
using namespace std::chrono_literals;

namespace {

// A coroutine that starts at once and is not waited for.
struct detached_task {
  struct promise_type {
    detached_task get_return_object() { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }
  };
};

detached_task add_into(future<int> a, future<int> b, int& sum) {
  auto x = co_await a;
  auto y = co_await b;
  sum = *x + *y;
}

// Does no I/O; counts who comes.
struct counting_progress : progress {
  void help(const std::function<bool()>&, time_point) override { ++helps; }
  void nudge() noexcept override {}
  void attend() noexcept override { ++attends; }

  int helps = 0;
  int attends = 0;
};

} // namespace

BOOST_AUTO_TEST_SUITE(futures)

BOOST_AUTO_TEST_CASE(get_returns_the_value_set_by_another_thread) {
  promise<int> p;
  std::thread setter{[p] { p.set(7); }};
  BOOST_TEST(p.get_future().get() == 7);
  setter.join();
}

BOOST_AUTO_TEST_CASE(get_throws_and_result_does_not) {
  promise<int> p;
  p.set(fail(errc::not_found, "no model named x"));
  BOOST_CHECK_THROW(p.get_future().get(), error);
  BOOST_TEST((p.get_future().result().error() == status{errc::not_found, "no model named x"}));
}

BOOST_AUTO_TEST_CASE(wait_for_gives_up_and_the_operation_goes_on) {
  promise<int> p;
  auto f = p.get_future();
  BOOST_TEST(!f.wait_for(1ms));
  p.set(1);
  BOOST_TEST(f.wait_for(1ms));
}

BOOST_AUTO_TEST_CASE(continuations_run_once_before_or_after) {
  promise<int> p;
  int calls = 0;
  p.get_future().then([&](const result<int>& r) { calls += *r; });
  p.set(1);
  p.get_future().then([&](const result<int>& r) { calls += *r; });
  BOOST_TEST(calls == 2);
}

BOOST_AUTO_TEST_CASE(coroutines_await_in_sequence) {
  promise<int> a, b;
  int sum = 0;
  add_into(a.get_future(), b.get_future(), sum);
  b.set(2);
  BOOST_TEST(sum == 0);
  a.set(1);
  BOOST_TEST(sum == 3);
}

BOOST_AUTO_TEST_CASE(when_all_keeps_order_and_errors) {
  promise<int> a, b;
  auto all = when_all(std::vector{a.get_future(), b.get_future()});
  b.set(fail(errc::busy, "later"));
  BOOST_TEST(!all.ready());
  a.set(1);
  auto outcomes = all.get();
  BOOST_TEST(*outcomes[0] == 1);
  BOOST_TEST((outcomes[1].error().code() == errc::busy));
  BOOST_TEST(when_all(std::vector<future<int>>{}).ready());
}

BOOST_AUTO_TEST_CASE(who_waits_for_all_helps_and_who_does_not_wait_asks_for_attention) {
  auto io = std::make_shared<counting_progress>();
  promise<int> a{io}, b{io};
  auto all = when_all(std::vector{a.get_future(), b.get_future()});
  BOOST_TEST(io->attends == 0);
  BOOST_TEST(!all.wait_for(1ms));
  BOOST_TEST(io->helps == 1);
  int called = 0;
  auto count = [&](const auto&) { ++called; };
  BOOST_TEST(a.get_future().chain(count));
  BOOST_TEST(io->attends == 0);
  all.then(count);
  BOOST_TEST(io->attends == 1);
  a.set(1);
  a.get_future().then(count);
  BOOST_TEST(!a.get_future().chain(count));
  BOOST_TEST(io->attends == 1);
  b.set(2);
  BOOST_TEST(called == 4);
}

BOOST_AUTO_TEST_CASE(cancel_undoes_first_and_a_late_value_is_dropped) {
  promise<int> p;
  bool undone = false;
  BOOST_TEST(p.on_cancel([&] { undone = true; }));
  auto f = p.get_future();
  f.cancel();
  BOOST_TEST(undone);
  BOOST_TEST((f.result().error().code() == errc::cancelled));
  BOOST_TEST(!p.set(1));
}

BOOST_AUTO_TEST_CASE(an_error_that_comes_of_undoing_reads_as_cancelled) {
  promise<int> p;
  BOOST_TEST(
    p.on_cancel([p] { p.set(fail(errc::permission_denied, "the memory was withdrawn")); }));
  auto f = p.get_future();
  f.cancel();
  BOOST_TEST((f.result().error().code() == errc::cancelled));
}

BOOST_AUTO_TEST_CASE(what_would_undo_an_operation_is_refused_once_it_is_over_or_being_cancelled) {
  promise<int> p;
  bool kept_meanwhile = true;
  BOOST_TEST(p.on_cancel([&] { kept_meanwhile = p.on_cancel([] {}); }));
  p.get_future().cancel();
  BOOST_TEST(!kept_meanwhile);
  BOOST_TEST(!p.on_cancel([] {}));
}

BOOST_AUTO_TEST_CASE(the_second_cancel_waits_until_the_first_has_undone) {
  promise<int> p;
  promise<void> undoing, go_on;
  std::atomic<bool> undone = false;
  BOOST_TEST(p.on_cancel([&] {
    undoing.set({});
    go_on.get_future().get();
    undone = true;
  }));
  auto f = p.get_future();
  std::thread first{[f] { f.cancel(); }};
  undoing.get_future().get();
  bool seen = false;
  std::thread second{[&] {
    f.cancel();
    seen = undone;
  }};
  go_on.set({});
  first.join();
  second.join();
  BOOST_TEST(seen);
}

BOOST_AUTO_TEST_CASE(a_dropped_promise_fails_its_future) {
  future<void> f;
  {
    promise<void> p;
    f = p.get_future();
  }
  BOOST_TEST((f.result().error().code() == errc::internal));
}

BOOST_AUTO_TEST_CASE(operations_without_values_end_together_with_the_first_error) {
  std::vector<result<void>> ended;
  auto done = [&](result<void> r) { ended.push_back(std::move(r)); };
  auto all = gathered(3, done);
  for (int i = 0; i < 3; ++i) {
    BOOST_TEST(ended.empty());
    all({});
  }
  BOOST_TEST_REQUIRE(ended.size() == 1u);
  BOOST_TEST(ended.back().has_value());
  auto some = gathered(3, done);
  some(fail(errc::not_found, "first"));
  some({});
  BOOST_TEST(ended.size() == 1u);
  some(fail(errc::busy, "second"));
  BOOST_TEST_REQUIRE(ended.size() == 2u);
  BOOST_TEST((ended.back().error().code() == errc::not_found));
}

BOOST_AUTO_TEST_SUITE_END()
