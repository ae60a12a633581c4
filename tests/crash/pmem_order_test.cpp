// Whatever order in which lines reach persistent memory: a power cut at any point leaves a pool that opens, and in it
// the newest version or the one before it.
#include "small_checkpoints.hpp"

#include <millrace/core/digest.hpp>
#include <millrace/tests/support/crash_child.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/power_cut.hpp>
#include <millrace/tests/support/scratch_directory.hpp>

#include <boost/test/unit_test.hpp>

#include <fstream>
#include <map>
#include <set>

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr std::uint64_t pool_bytes = 16u << 20;
const std::string subject = "subject";
const std::string large = "large";

/// A pool under watch: every image a cut may leave is opened by another process.
class watched_pool {
public:
  explicit watched_pool(std::uint64_t size_bytes = pool_bytes) {
    auto options = small_pool(path(), size_bytes);
    options.observer = recorder_;
    auto opened = storage::open_pool(options);
    BOOST_REQUIRE_MESSAGE(opened, why(opened));
    pool_ = std::move(*opened);
    at_ = pool_->checkpoints();
    BOOST_REQUIRE(checker_.hear() == "ready");
  }
  ~watched_pool() { recorder_->stop(); }

  /// From now on. `model`: whose newest step is asked for.
  void watch(const std::string& model) {
    model_ = model;
    auto mapping = pool_->mappings().at(0);
    recorder_->watch(
      {mapping.data, mapping.size_bytes}, [this](auto image, auto& what) { check(image, what); });
  }

  storage::checkpoint_store& at() { return *at_; }
  power_cut_recorder& recorder() { return *recorder_; }

  /// Steps that a cut may leave as the newest from now on.
  void allow(std::set<std::uint64_t> steps) { allowed_ = std::move(steps); }
  std::size_t different_images() const { return answers_.size(); }
  std::uint64_t violations() const { return violations_; }
  const std::string& first_violation() const { return first_violation_; }

private:
  std::string path() const { return directory_.path() + "/pool"; }

  std::string answer_for(std::span<const std::byte> image) {
    auto copy = directory_.path() + "/image";
    {
      std::ofstream file{copy, std::ios::binary | std::ios::trunc};
      file.write(
        reinterpret_cast<const char*>(image.data()), static_cast<std::streamsize>(image.size()));
    }
    checker_.say(copy + " " + model_);
    return checker_.hear().value_or("the process that opens it died");
  }

  void check(std::span<const std::byte> image, const std::string& what) {
    // Many cuts leave the same.
    auto [known, fresh] = answers_.try_emplace(digest(image.data(), image.size()));
    auto& answer = known->second;
    if (fresh)
      answer = answer_for(image);
    std::size_t digits = 0;
    auto is_step = answer.find_first_not_of("0123456789") == std::string::npos;
    if (is_step && allowed_.contains(std::stoull(answer, &digits)))
      return;
    if (violations_++ == 0)
      first_violation_ = what + ": " + answer;
  }

  scratch_directory directory_{"/dev/shm"};
  std::shared_ptr<power_cut_recorder> recorder_ = std::make_shared<power_cut_recorder>();
  std::shared_ptr<storage::pool> pool_;
  std::shared_ptr<storage::checkpoint_store> at_;
  crash_child checker_{ORDER_CHILD, "", ""};
  std::string model_;
  std::map<std::uint64_t, std::string> answers_; // by digest of the image
  std::set<std::uint64_t> allowed_{0};
  std::uint64_t violations_ = 0;
  std::string first_violation_;
};

void save_both_ways(watched_pool& pool, const shard_spec& shard, std::uint64_t steps) {
  for (std::uint64_t step = 1; step <= steps; ++step) {
    pool.allow({step - 1, step});
    auto saved = save_either_way(pool.at(), shard, step);
    BOOST_REQUIRE_MESSAGE(saved.ok(), saved.to_string());
    pool.allow({step});
  }
}

} // namespace

BOOST_AUTO_TEST_SUITE(pmem_order)

BOOST_AUTO_TEST_CASE(a_power_cut_leaves_the_newest_step_or_the_one_before) {
  watched_pool pool;
  pool.watch(subject);
  auto shard = small_shard(subject);
  BOOST_REQUIRE(enroll(pool.at(), shard));
  save_both_ways(pool, shard, 4);
  // Another job comes and goes; the subject's is over; what it does not need is reclaimed.
  BOOST_REQUIRE(enroll(pool.at(), small_shard("other")));
  BOOST_REQUIRE(save(pool.at(), small_shard("other"), 1));
  pool.at().leave("other", 0, false);
  BOOST_REQUIRE(erase(pool.at(), "other").ok());
  pool.at().leave(subject, 0, true);
  auto repacked = repack(pool.at());
  BOOST_REQUIRE(repacked);
  BOOST_TEST(repacked->versions_freed == 1);
  BOOST_REQUIRE(enroll(pool.at(), shard));
  pool.allow({4, 5});
  BOOST_REQUIRE(save(pool.at(), shard, 5));

  BOOST_TEST(pool.violations() == 0, pool.first_violation());
  auto& seen = pool.recorder();
  BOOST_TEST_MESSAGE(
    seen.cuts() << " cuts, of " << seen.whole_cuts() << " every image; " << seen.images()
                << " images, " << pool.different_images() << " different ones");
  BOOST_TEST(pool.different_images() > 200u);
}

BOOST_AUTO_TEST_CASE(moved_data_is_whole_before_it_counts) {
  watched_pool pool{32u << 20};
  // A hole before it makes moving worth while.
  BOOST_REQUIRE(enroll(pool.at(), small_shard("large hole")));
  auto shard = small_shard(large);
  BOOST_REQUIRE(enroll(pool.at(), shard));
  save_both_ways(pool, shard, 2);
  pool.at().leave("large hole", 0, false);
  BOOST_REQUIRE(erase(pool.at(), "large hole").ok());
  pool.at().leave(large, 0, false);
  pool.watch(large);
  auto repacked = repack(pool.at());
  BOOST_REQUIRE_MESSAGE(repacked, why(repacked));
  BOOST_TEST(repacked->moved_bytes > 0);
  BOOST_TEST(pool.violations() == 0, pool.first_violation());
  BOOST_TEST(pool.recorder().images() > 10);
}

BOOST_AUTO_TEST_CASE(the_check_notices_a_record_that_is_not_written_back) {
  watched_pool pool;
  pool.watch(subject);
  pool.recorder().forget_flushes();
  auto shard = small_shard(subject);
  BOOST_REQUIRE(enroll(pool.at(), shard));
  save_both_ways(pool, shard, 2);
  BOOST_TEST(pool.violations() > 0);
}

BOOST_AUTO_TEST_CASE(the_check_notices_bytes_that_are_not_written_back) {
  watched_pool pool;
  pool.watch(subject);
  pool.recorder().forget_bulk();
  auto shard = small_shard(subject);
  BOOST_REQUIRE(enroll(pool.at(), shard));
  save_both_ways(pool, shard, 2);
  BOOST_TEST(pool.violations() > 0);
}

BOOST_AUTO_TEST_SUITE_END()
