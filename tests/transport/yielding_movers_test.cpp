// Tests movers that yield: the test holds them, so that only urgent ones copy.
#include <millrace/core/digest.hpp>
#include <millrace/tests/support/exposed_matrix.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/process.hpp>
#include <millrace/transport/copy/copy_job.hpp>

#include <boost/test/unit_test.hpp>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <semaphore>
#include <thread>
#include <vector>

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::transport;
using namespace std::chrono_literals;

namespace {

constexpr auto for_ever = 24h; // no test waits for this
constexpr auto bound = 120s;   // of a wait that does not end if the code is wrong

// How often each chunk of a job ran. It outlives the pool that runs it.
struct counted_job {
  explicit counted_job(std::uint32_t n) : chunks(n) {}

  void submit(mover_pool& to, job_class kind = job_class::transfer) {
    to.submit(
      static_cast<std::uint32_t>(chunks.size()), [this](std::uint32_t i) { ++chunks[i]; },
      [ended = held.callback()] { ended({}); }, kind);
  }

  bool ends() { return held.take().has_value(); }
  bool each_ran_once() const {
    return std::ranges::all_of(chunks, [](auto& n) { return n == 1; });
  }
  bool nothing_ran() const {
    return std::ranges::all_of(chunks, [](auto& n) { return n == 0; });
  }

  std::vector<std::atomic<int>> chunks;
  held_completion<void> held;
};

// A pool whose only mover that yields is in a chunk until the test lets it go.
struct starved {
  std::counting_semaphore<4> begun{0}, end{0};
  std::atomic<bool> was_let_go = false;
  std::optional<mover_pool> movers;

  explicit starved(std::chrono::milliseconds patience = for_ever) {
    movers.emplace(1, 1, yielding{1, patience});
    // Only movers that yield run jobs of this class.
    movers->submit(
      1, [this](std::uint32_t) { hold(); }, [] {}, job_class::background);
    begun.acquire();
  }
  ~starved() {
    end.release();
    movers.reset();
  }

  void hold() {
    begun.release();
    was_let_go = end.try_acquire_for(bound);
  }

  // When this returns, an urgent mover has looked at everything that was submitted before.
  void finish_urgent_work() {
    counted_job probe{3};
    probe.submit(*movers, job_class::urgent);
    BOOST_TEST(probe.ends());
    BOOST_TEST(probe.each_ran_once());
  }
};

int priority_in(mover_pool& pool, job_class kind) {
  std::atomic<int> seen = 100;
  held_completion<void> held;
  pool.submit(
    1, [&](std::uint32_t) { seen = getpriority(PRIO_PROCESS, 0); },
    [ended = held.callback()] { ended({}); }, kind);
  BOOST_TEST(held.take().has_value());
  return seen;
}

} // namespace

BOOST_AUTO_TEST_SUITE(yielding_movers)

BOOST_AUTO_TEST_CASE(urgent_movers_have_the_priority_of_the_program) {
  auto own = getpriority(PRIO_PROCESS, 0);
  mover_pool pool{1, 1, {.nice = 3, .patience = for_ever}};
  BOOST_TEST(priority_in(pool, job_class::urgent) == own);
  BOOST_TEST(priority_in(pool.devices(), job_class::urgent) == own);
  BOOST_TEST(priority_in(pool, job_class::transfer) == std::min(own + 3, 19));
  auto hurry = pool.hurry();
  BOOST_TEST(priority_in(pool, job_class::transfer) == own);
  BOOST_TEST(priority_in(pool.devices(), job_class::transfer) == own);
}

BOOST_AUTO_TEST_CASE(movers_that_do_not_yield_do_urgent_work_themselves) {
  mover_pool pool{1};
  BOOST_TEST((pool.hurry() == nullptr));
  counted_job job{5};
  job.submit(pool, job_class::urgent);
  BOOST_TEST(job.ends());
  BOOST_TEST(job.each_ran_once());
}

BOOST_AUTO_TEST_CASE(urgent_jobs_do_not_wait_for_movers_that_yield_and_no_other_job_is_urgent) {
  counted_job patient{3}, urgent{3};
  starved s;
  patient.submit(*s.movers);
  urgent.submit(*s.movers, job_class::urgent);
  BOOST_TEST(urgent.ends());
  BOOST_TEST(urgent.each_ran_once());
  s.finish_urgent_work();
  BOOST_TEST(patient.nothing_ran());
  s.end.release();
  BOOST_TEST(patient.ends());
  BOOST_TEST(patient.each_ran_once());
}

BOOST_AUTO_TEST_CASE(transfers_are_urgent_while_the_program_waits_and_no_longer) {
  counted_job queued{20}, later{20}, afterwards{3};
  starved s;
  queued.submit(*s.movers);
  auto hurry = s.movers->hurry();
  BOOST_TEST(queued.ends());
  auto again = s.movers->hurry();
  hurry = nullptr;
  later.submit(*s.movers);
  BOOST_TEST(later.ends());
  again = nullptr;
  afterwards.submit(*s.movers);
  s.finish_urgent_work();
  BOOST_TEST(queued.each_ran_once());
  BOOST_TEST(later.each_ran_once());
  BOOST_TEST(afterwards.nothing_ran());
}

BOOST_AUTO_TEST_CASE(transfers_for_devices_are_urgent_too) {
  counted_job device_job{3};
  starved s;
  std::binary_semaphore begun{0}, end{0};
  s.movers->devices().submit(
    1,
    [&](std::uint32_t) {
      begun.release();
      end.acquire();
    },
    [] {});
  begun.acquire();
  device_job.submit(s.movers->devices());
  auto hurry = s.movers->hurry();
  BOOST_TEST(device_job.ends());
  BOOST_TEST(device_job.each_ran_once());
  end.release();
  s.end.release();
  s.movers.reset();
}

BOOST_AUTO_TEST_CASE(transfers_that_have_waited_too_long_are_urgent) {
  counted_job late{20}, next{20};
  starved s{1ms};
  late.submit(*s.movers);
  BOOST_TEST(late.ends());
  BOOST_TEST(late.each_ran_once());
  next.submit(*s.movers);
  BOOST_TEST(next.ends());
  BOOST_TEST(next.each_ran_once());
}

// Two threads never copy into the same bytes: what a starved mover has begun is its own.
BOOST_AUTO_TEST_CASE(a_chunk_that_was_begun_stays_with_its_mover) {
  std::binary_semaphore begun{0}, end{0};
  std::atomic<int> others = 0, first = 0;
  held_completion<void> held;
  mover_pool pool{1, 1, {.nice = 1, .patience = for_ever}};
  pool.submit(
    9,
    [&](std::uint32_t i) {
      if (i > 0)
        return static_cast<void>(++others);
      ++first;
      begun.release();
      end.acquire();
    },
    [ended = held.callback()] { ended({}); });
  begun.acquire();
  auto hurry = pool.hurry();
  BOOST_TEST(eventually([&] { return others == 8; }));
  BOOST_TEST(!held.ready());
  end.release();
  BOOST_TEST(held.take().has_value());
  BOOST_TEST(others == 8);
  BOOST_TEST(first == 1);
}

BOOST_AUTO_TEST_CASE(nothing_is_copied_twice_while_the_program_begins_and_ends_to_wait) {
  counted_job transfers{4'000}, loads{500};
  mover_pool pool{3, 1, {.nice = 1, .patience = 1ms}};
  transfers.submit(pool);
  std::thread program{[&] {
    for (int i = 0; i < 500; ++i)
      auto hurry = pool.hurry();
  }};
  loads.submit(pool, job_class::urgent);
  BOOST_TEST(transfers.ends());
  BOOST_TEST(loads.ends());
  program.join();
  BOOST_TEST(transfers.each_ran_once());
  BOOST_TEST(loads.each_ran_once());
}

BOOST_AUTO_TEST_CASE(no_job_is_forgotten_while_the_program_begins_and_ends_to_wait) {
  mover_pool pool{2, 1, {.nice = 1, .patience = for_ever}};
  std::atomic<bool> stop{false};
  std::thread program{[&] {
    while (!stop)
      auto hurry = pool.hurry();
  }};
  auto all_end = true;
  for (int i = 0; i < 300 && all_end; ++i) {
    counted_job transfer{2}, preparation{2}, load{1};
    transfer.submit(pool);
    preparation.submit(pool, job_class::background);
    load.submit(pool, job_class::urgent);
    all_end = load.ends() && transfer.ends() && preparation.ends();
  }
  stop = true;
  program.join();
  BOOST_TEST(all_end);
}

BOOST_AUTO_TEST_CASE(preparations_begin_when_urgent_movers_have_taken_the_rest) {
  std::binary_semaphore begun{0}, end{0};
  counted_job preparation{3};
  mover_pool pool{1, 1, {.nice = 1, .patience = for_ever}};
  pool.submit(
    2,
    [&](std::uint32_t i) {
      if (i > 0)
        return;
      begun.release();
      end.acquire();
    },
    [] {}, job_class::urgent);
  begun.acquire();
  preparation.submit(pool, job_class::background);
  end.release();
  BOOST_TEST(preparation.ends());
  BOOST_TEST(preparation.each_ran_once());
}

BOOST_AUTO_TEST_CASE(a_pool_that_ends_does_not_leave_its_work_to_starved_movers) {
  counted_job urgent{3}, preparation{3};
  std::atomic<int> ran = 0;
  starved s;
  preparation.submit(*s.movers, job_class::background);
  urgent.submit(*s.movers, job_class::urgent);
  // Only urgent movers can run the chunk that lets the other one go.
  s.movers->submit(
    4,
    [&](std::uint32_t) {
      if (++ran == 4)
        s.end.release();
    },
    [] {});
  s.movers.reset();
  BOOST_TEST(s.was_let_go.load());
  BOOST_TEST(ran == 4);
  BOOST_TEST(urgent.each_ran_once());
  BOOST_TEST(preparation.each_ran_once());
}

BOOST_AUTO_TEST_CASE(a_hurry_may_outlive_its_pool) {
  std::shared_ptr<void> hurry;
  {
    mover_pool pool{1, 1, {.nice = 1, .patience = for_ever}};
    hurry = pool.hurry();
  }
  BOOST_TEST((hurry != nullptr));
  hurry = nullptr;
}

// The program waits for a load; it computes while a save reads its memory.
BOOST_AUTO_TEST_CASE(loads_are_urgent_and_saves_are_not) {
  constexpr std::uint64_t size = 3 * digest_block_bytes + 7;
  constexpr copy_limits small_chunks{.chunk_bytes = digest_block_bytes, .inline_bytes_max = 0};
  exposed_matrix saved{{1, size, 0}, access_mode::read, 3};
  exposed_matrix loaded{{1, size, 0}, access_mode::write, 3};
  std::vector<std::byte> slot(size), source(size);
  write_pattern(source.data(), 0, size, 5);
  starved s;
  auto run = [&](direction dir, const bulk_handle& h, std::byte* local) {
    held_completion<copied> done;
    run_copy_job(
      *s.movers, small_chunks,
      {.dir = dir,
       .memory = find_region(h.region, h.key, h.allows).value(),
       .ops = {{.remote_offset = 0, .local = local, .length = size}},
       .hold = nullptr,
       .abandoned = nullptr,
       .prepare = {}},
      done.callback());
    return done;
  };
  auto save = run(direction::read, saved.handle(), slot.data());
  auto load = run(direction::write, loaded.handle(), source.data());
  BOOST_TEST(load.take().has_value());
  BOOST_TEST((loaded.dense() == source));
  BOOST_TEST(!save.ready());
  s.end.release();
  BOOST_TEST(save.take().has_value());
  BOOST_TEST((saved.dense() == slot));
}

BOOST_AUTO_TEST_SUITE_END()
