// Runs jobs, removals, readers and repacks on one pool at once. What is read is what was saved, and
// nothing is left over.
#include <millrace/storage/pmem/pool.hpp>
#include <millrace/tests/support/bucket_driving.hpp>
#include <millrace/tests/support/checkpoint_driving.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/pool_place.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <atomic>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

using namespace millrace;
using namespace millrace::storage;
using namespace millrace::testing;

// Named, for the lambdas of data tests carry these types.
namespace pmem_threads_tests {

constexpr std::uint64_t mib = 1u << 20;
constexpr std::uint64_t lives = 6, steps = 4; // of a job
const auto ways = boost::unit_test::data::make(pool_ways());

/// The pool, and the first thing that went wrong on any thread.
class arena {
public:
  explicit arena(checkpoint_store& store) : store_(&store) {}

  checkpoint_store& store() const { return *store_; }
  bool goes_on() const { return running_ > 0; }

  void expect(const status& outcome, const std::string& doing) {
    std::lock_guard guard{mutex_};
    if (!outcome.ok() && failed_.ok())
      failed_ = outcome.within(doing);
  }
  status failed() const { return failed_; }

  /// A thread whose end the others await.
  std::jthread start(std::function<void()> work) {
    ++running_;
    return std::jthread{[this, work = std::move(work)] {
      work();
      --running_;
    }};
  }

private:
  checkpoint_store* store_;
  std::atomic<int> running_ = 0;
  std::mutex mutex_;
  status failed_;
};

shard_spec shard_called(const std::string& name) {
  return shard_of(name, {mib + name.size(), 100});
}

/// Waits for readers of the slot, as a job does.
status save_patiently(checkpoint_store& store, const shard_spec& shard, std::uint64_t step) {
  for (;;) {
    auto freed = std::make_shared<std::promise<void>>();
    auto heard = freed->get_future();
    auto pending = begin(store, shard.model, shard.rank, step, [freed] { freed->set_value(); });
    if (pending) {
      auto done = finish(**pending, shard, step);
      return done ? status{} : done.error();
    }
    if (pending.error().code() != errc::busy)
      return pending.error();
    if (heard.wait_for(std::chrono::seconds{60}) != std::future_status::ready)
      return pending.error();
  }
}

/// Waits for readers of what was removed.
status enroll_patiently(checkpoint_store& store, const shard_spec& shard) {
  for (auto tries = 0;; ++tries) {
    auto enrolled = enroll(store, shard);
    if (enrolled)
      return {};
    if (enrolled.error().code() != errc::busy || tries == 60'000)
      return enrolled.error();
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
}

/// A job that is started anew again and again, and removed in the end where `removes` says so.
void live(arena& a, const std::string& name, bool removes) {
  auto shard = shard_called(name);
  std::uint64_t step = 0;
  for (shard.life = 1; shard.life <= lives; ++shard.life) {
    a.expect(enroll_patiently(a.store(), shard), "registering " + name);
    for (std::uint64_t i = 0; i < steps; ++i)
      a.expect(save_patiently(a.store(), shard, ++step), "saving " + name);
    auto newest = newest_step(a.store(), name, 0);
    if (!newest || *newest != step)
      a.expect({errc::internal, "another step is the newest"}, "reading " + name);
    a.store().leave(name, 0, shard.life % 2 == 0);
    if (removes)
      a.expect(erase(a.store(), name), "removing " + name);
  }
}

/// Reads all that is there while anybody changes it.
void read(arena& a) {
  while (a.goes_on())
    for (auto& m : list_all(a.store())) {
      auto outcome = check_version(a.store(), shard_called(m.model), {});
      if (outcome.code() != errc::not_found)
        a.expect(outcome, "reading " + m.model);
    }
}

} // namespace pmem_threads_tests

using namespace pmem_threads_tests;

BOOST_AUTO_TEST_SUITE(pmem_threads)

BOOST_DATA_TEST_CASE(jobs_removals_readers_and_repacking_do_not_disturb_each_other, ways, way) {
  pool_place place{way};
  place.prepare();
  {
    auto opened = open_pool(place.options(64 * mib));
    BOOST_REQUIRE_MESSAGE(opened, why(opened));
    auto store = (*opened)->checkpoints();
    arena a{*store};
    {
      auto stays = a.start([&] { live(a, "stays", false); });
      auto goes = a.start([&] { live(a, "goes", true); });
      std::jthread reads{[&] { read(a); }};
      do {
        auto repacked = repack(*store);
        a.expect(repacked ? status{} : repacked.error(), "repacking");
      } while (a.goes_on());
    }
    BOOST_TEST(a.failed().ok(), a.failed().to_string());
    auto left = list_all(*store);
    BOOST_TEST_REQUIRE(left.size() == 1u);
    auto outcome = check_version(*store, shard_called("stays"), lives * steps);
    BOOST_TEST(outcome.ok(), outcome.to_string());
    BOOST_TEST(erase(*store, "stays").ok());
    BOOST_TEST(store->close(20'000).ok());
  }
  auto report = check_pool(place.path(), true);
  BOOST_REQUIRE_MESSAGE(report, why(report));
  BOOST_TEST(report->problems.empty());
  BOOST_TEST(report->unreachable_bytes == 0u);
  BOOST_TEST(report->pool.shards == 0u);
}

BOOST_AUTO_TEST_SUITE_END()
