// Whose chunk comes next.
#include <millrace/transport/mover_pool.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <optional>
#include <semaphore>
#include <string>

using namespace millrace::transport;

namespace {

// One mover, held until everything has been submitted; what ran, a letter for each chunk, '.' for each end.
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
