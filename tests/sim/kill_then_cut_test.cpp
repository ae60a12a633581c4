// A process that is killed leaves to the next one what is not durable: what that one finds and
// builds upon must not be lost in a power cut.
#include <millrace/storage/flush/flushed_step.hpp>
#include <millrace/storage/flush/version_flusher.hpp>
#include <millrace/storage/rocksdb/rocksdb_bucket.hpp>
#include <millrace/tests/sim/disks.hpp>
#include <millrace/tests/support/bucket_driving.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/opened_in_memory.hpp>
#include <millrace/tests/support/scratch_directory.hpp>

#include <boost/test/unit_test.hpp>

#include <functional>
#include <optional>

using namespace millrace;
using namespace millrace::sim;
using namespace millrace::testing;
using namespace millrace::storage;
using namespace millrace::storage::flush;

namespace {

/// Kills the first process at each event of its files; lets the second one do its work, and cuts
/// the power. Returns what `problem` says then, or an empty text.
std::string problem_after_kills_and_cuts(
  const std::function<void(const std::string&)>& first,
  const std::function<void(const std::string&, const std::function<void()>& cut)>& second,
  const std::function<std::string(const std::string&)>& problem) {
  dice random{18};
  for (int kill_at = 1;; ++kill_at) {
    scratch_directory place{"/dev/shm"};
    simulated_disks disks{place.path() + "/disks"};
    auto path = disks.path_of("a") + "/b";
    std::optional<directory_left> killed;
    int events = 0;
    disks.watch([&](auto&) {
      if (++events == kill_at)
        killed = disks.left_in("a", false, random);
    });
    first(path);
    disks.watch(nullptr);
    if (!killed)
      return {};
    for (int i = 0; i < 8; ++i) {
      disks.put_back("a", *killed);
      directory_left left;
      second(path, [&] { left = disks.left_in("a", true, random); });
      disks.put_back("a", left);
      if (auto why = problem(path); !why.empty())
        return fmt::format("killed at event {}: {}", kill_at, why);
    }
  }
}

void flush_step(const std::string& path, std::uint64_t step) {
  auto flusher = version_flusher::open({.directory = path});
  BOOST_TEST_REQUIRE(flusher.has_value());
  for (std::uint32_t rank : {0, 1}) {
    auto version =
      std::make_shared<opened_in_memory>(shard_at(rank, step, 1000), step, step * 10 + rank);
    auto done = flusher->flush({"model", rank, 2, {}, version}, std::atomic<bool>{false});
    BOOST_TEST_REQUIRE(done.has_value(), testing::why(done));
  }
}

std::shared_ptr<bucket> open_small(const std::string& path) {
  rocksdb_bucket_options options;
  options.path = path;
  options.capacity_bytes = 8u << 20;
  options.window_bytes = 512u << 10;
  options.inline_max_bytes = 1000;
  options.segment_bytes = 1u << 20;
  options.index_reserve_bytes = 0;
  auto opened = open_rocksdb_bucket(std::move(options));
  BOOST_TEST_REQUIRE(opened.has_value(), testing::why(opened));
  return *opened;
}

} // namespace

BOOST_AUTO_TEST_SUITE(sim)

BOOST_AUTO_TEST_CASE(a_step_that_was_found_flushed_stays) {
  auto why = problem_after_kills_and_cuts(
    [](auto& path) {
      flush_step(path, 1);
      flush_step(path, 2);
    },
    [](auto& path, auto& cut) {
      flush_step(path, 2);
      cut();
    },
    [](auto& path) -> std::string {
      auto latest = open_flushed(path, "model");
      if (!latest)
        return latest.error().to_string();
      auto whole = latest->verify();
      if (latest->manifest().step != 2)
        return "latest is another step";
      return whole.ok() ? "" : whole.to_string();
    });
  BOOST_TEST(why == "");
}

BOOST_AUTO_TEST_CASE(a_segment_that_was_found_stays) {
  auto store_one = [](bucket& subject, const std::string& name, std::uint64_t seed) {
    auto stored = testing::store(subject, spec_of(name, {50'000}), seed);
    BOOST_TEST_REQUIRE(stored.has_value(), testing::why(stored));
  };
  auto why = problem_after_kills_and_cuts(
    [&](auto& path) { store_one(*open_small(path), "first", 1); },
    [&](auto& path, auto& cut) {
      auto subject = open_small(path);
      store_one(*subject, "second", 2);
      cut();
    },
    [](auto& path) -> std::string {
      auto right = check_model(*open_small(path), "second", 2);
      return right.ok() ? "" : right.to_string();
    });
  BOOST_TEST(why == "");
}

BOOST_AUTO_TEST_SUITE_END()
