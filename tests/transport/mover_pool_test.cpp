// Tests whose chunk the movers take next.
#include <millrace/net/loop/io_loop.hpp>
#include <millrace/transport/copy/mover_pool.hpp>
#include <millrace/transport/memory/arena.hpp>

#include <boost/test/unit_test.hpp>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <future>
#include <optional>
#include <semaphore>
#include <string>

using namespace millrace::net;
using namespace millrace::transport;

namespace {

// One mover, held until everything has been submitted; what ran, a letter for each chunk, '.' for
// each end.
struct fixture {
  std::string ran;
  std::binary_semaphore everything{0};
  std::optional<mover_pool> movers{1};

  fixture() {
    movers->submit(
      1, [this](std::uint32_t) { everything.acquire(); }, [] {});
  }

  void submit(char name, std::uint32_t chunks, job_class kind = job_class::transfer) {
    movers->submit(
      chunks, [this, name](std::uint32_t) { ran += name; }, [this] { ran += '.'; }, kind);
  }

  const std::string& run() {
    everything.release();
    movers.reset();
    return ran;
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(mover_pool_turns, fixture)

BOOST_AUTO_TEST_CASE(every_chunk_runs_once_and_every_job_ends_once) {
  for (char name : {'a', 'b', 'c', 'd'})
    submit(name, 30);
  run();
  for (char name : {'a', 'b', 'c', 'd'})
    BOOST_TEST(std::count(ran.begin(), ran.end(), name) == 30);
  BOOST_TEST(std::count(ran.begin(), ran.end(), '.') == 4);
}

BOOST_AUTO_TEST_CASE(a_short_job_does_not_wait_for_long_ones) {
  submit('a', 100);
  submit('b', 100);
  submit('s', 1);
  BOOST_TEST(run().find('s') < 6u);
}

BOOST_AUTO_TEST_CASE(a_stream_of_short_jobs_does_not_hold_a_long_one_up) {
  submit('a', 20);
  for (int i = 0; i < 100; ++i)
    submit('s', 1);
  BOOST_TEST(run().rfind('a') < 70u);
}

BOOST_AUTO_TEST_CASE(long_jobs_end_one_after_the_other) {
  for (char name : {'a', 'b', 'c', 'd'})
    submit(name, 8);
  run();
  auto first_end = ran.find('.');
  BOOST_TEST(first_end < 16u);
  BOOST_TEST(ran.rfind('a') < ran.rfind('b'));
  BOOST_TEST(ran.rfind('c') < ran.rfind('d'));
}

BOOST_AUTO_TEST_CASE(preparations_wait_for_transfers) {
  submit('p', 5, job_class::background);
  submit('a', 5);
  BOOST_TEST(run() == "aaaaa.ppppp.");
}

BOOST_AUTO_TEST_CASE(a_job_without_chunks_ends) {
  submit('a', 0);
  BOOST_TEST(run() == ".");
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(mover_pool_without_threads)

// Runs `body` as a user to whom the system gives no more threads; what it returns, 0 if the machine
// cannot do that.
static int without_threads(const std::function<int()>& body) {
  constexpr uid_t nobody_else = 64'123;
  auto child = fork();
  if (child == 0) {
    rlimit none{1, 1};
    if ((geteuid() == 0 && setuid(nobody_else) != 0) || setrlimit(RLIMIT_NPROC, &none) != 0)
      _exit(0);
    _exit(body());
  }
  int state = 0;
  waitpid(child, &state, 0);
  return WIFEXITED(state) ? WEXITSTATUS(state) : 1000 + WTERMSIG(state);
}

BOOST_AUTO_TEST_CASE(movers_have_the_priority_asked_for_and_no_other_thread_has) {
  constexpr std::uint32_t below = 3;
  auto own = getpriority(PRIO_PROCESS, 0);
  std::promise<int> mover, device_mover; // the pool ends first
  mover_pool pool{1, 2, {.nice = below, .patience = std::chrono::hours{24}}};
  pool.submit(
    1, [&](std::uint32_t) { mover.set_value(getpriority(PRIO_PROCESS, 0)); }, [] {});
  pool.devices().submit(
    1, [&](std::uint32_t) { device_mover.set_value(getpriority(PRIO_PROCESS, 0)); }, [] {});
  auto wanted = std::min(own + static_cast<int>(below), 19);
  BOOST_TEST(mover.get_future().get() == wanted);
  BOOST_TEST(device_mover.get_future().get() == wanted);
  BOOST_TEST(getpriority(PRIO_PROCESS, 0) == own);
}

BOOST_AUTO_TEST_CASE(a_fabric_says_that_it_cannot_have_its_threads) {
  BOOST_TEST(without_threads([] {
               mover_pool pool{2};
               return pool.threads() == 0 && pool.check().code() == millrace::errc::no_space ? 0
                                                                                             : 1;
             }) == 0);
}

BOOST_AUTO_TEST_CASE(a_pool_without_threads_for_devices_uses_its_own) {
  {
    mover_pool pool{1};
    BOOST_TEST(&pool.devices() != &pool);
  }
  BOOST_TEST(without_threads([] {
               mover_pool none{1};
               return &none.devices() == &none ? 0 : 1;
             }) == 0);
}

BOOST_AUTO_TEST_CASE(a_loop_says_that_it_cannot_have_its_thread) {
  BOOST_TEST(without_threads([] {
               auto loop = io_loop::start({});
               return !loop && loop.error().code() == millrace::errc::no_space ? 0 : 1;
             }) == 0);
}

BOOST_AUTO_TEST_CASE(an_arena_is_touched_without_threads) {
  BOOST_TEST(without_threads([] {
               auto a = arena::create({.name = "t", .size_bytes = 130u << 20, .lock = false});
               return a && (*a)->data()[(*a)->size_bytes() - 1] == std::byte{0} ? 0 : 1;
             }) == 0);
}

BOOST_AUTO_TEST_SUITE_END()
