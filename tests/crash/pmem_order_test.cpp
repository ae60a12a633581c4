// Lets lines reach persistent memory in every order. A power cut at any point leaves a pool that
// opens, with the newest version or the one before it.
#include "crash_models.hpp"
#include "small_checkpoints.hpp"

#include <millrace/core/digest.hpp>
#include <millrace/tests/support/crash_child.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/power_cut.hpp>
#include <millrace/tests/support/scratch_directory.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr std::uint64_t pool_bytes = 16u << 20;
const std::string subject = "subject";
const std::string large = "large";
const std::string beside = "beside";

// Most of a pool is empty, and pages that are never touched cost nothing.
void write_sparse(const std::string& path, std::span<const std::byte> bytes) {
  constexpr std::size_t block = 4096;
  static constexpr std::array<std::byte, block> empty{};
  std::ofstream file{path, std::ios::binary | std::ios::trunc};
  for (std::size_t at = 0; at < bytes.size(); at += block) {
    auto part = bytes.subspan(at, std::min(block, bytes.size() - at));
    if (std::memcmp(part.data(), empty.data(), part.size()) == 0)
      continue;
    file.seekp(static_cast<std::streamoff>(at));
    file.write(
      reinterpret_cast<const char*>(part.data()), static_cast<std::streamsize>(part.size()));
  }
  file.close();
  std::filesystem::resize_file(path, bytes.size());
}

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
    models_ = pool_->models();
    BOOST_REQUIRE(checker_.hear() == "ready");
  }
  ~watched_pool() { recorder_->stop(); }

  /// From now on. `model`: whose newest step, or whose generation in the repository, is asked for.
  void watch(const std::string& model, const std::string& kind = "checkpoint") {
    subject_ = kind + " " + model;
    auto mapping = pool_->mappings().at(0);
    recorder_->watch(
      {mapping.data, mapping.size_bytes}, [this](auto image, auto& what) { check(image, what); });
  }

  storage::checkpoint_store& at() { return *at_; }
  storage::bucket& models() { return *models_; }
  power_cut_recorder& recorder() { return *recorder_; }

  /// Steps, or generations, that a cut may leave as the newest from now on.
  void allow(std::set<std::uint64_t> steps) { allowed_ = std::move(steps); }
  std::size_t different_images() const { return answers_.size(); }
  std::uint64_t violations() const { return violations_; }
  const std::string& first_violation() const { return first_violation_; }

private:
  std::string path() const { return directory_.path() + "/pool"; }

  std::string answer_for(std::span<const std::byte> image) {
    auto copy = directory_.path() + "/image";
    write_sparse(copy, image);
    checker_.say(copy + " " + subject_);
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
  std::shared_ptr<storage::bucket> models_;
  crash_child checker_{PMEM_ORDER_CHILD, "", ""};
  std::string subject_;
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

// Removes the newest step of a model, then the whole model, which is open. Another model lives on.
// `pool` watches one of the two.
void remove_beside_another(watched_pool& pool, bool watches_subject) {
  auto allow = [&](std::set<std::uint64_t> steps) {
    if (watches_subject)
      pool.allow(std::move(steps));
  };
  allow({1, 2});
  BOOST_REQUIRE(erase(pool.at(), subject, 2).ok());
  allow({1});
  auto reader = open_version(pool.at(), subject, 0);
  BOOST_REQUIRE(reader);
  allow({0, 1});
  BOOST_REQUIRE(erase(pool.at(), subject).ok());
  allow({0});
  reader = fail(errc::ok, "");
  BOOST_REQUIRE(list_all(pool.at()).size() == 1u);
}

void store_generation(watched_pool& pool, std::uint64_t generation) {
  pool.allow({generation - 1, generation});
  auto stored =
    store(pool.models(), crash_spec(subject, generation), crash_seed(subject, generation));
  BOOST_REQUIRE_MESSAGE(stored, why(stored));
  pool.allow({generation});
}

// Checks that some image shows what the pool's code leaves out.
void check_notices(const power_cut_recorder::defects& defects) {
  watched_pool pool;
  pool.watch(subject);
  pool.recorder().forget(defects);
  auto shard = small_shard(subject);
  BOOST_REQUIRE(enroll(pool.at(), shard));
  save_both_ways(pool, shard, 2);
  BOOST_TEST(pool.violations() > 0);
}

} // namespace

BOOST_AUTO_TEST_SUITE(pmem_order)

// Slots get larger objects, and smaller bytes reuse them.
BOOST_AUTO_TEST_CASE(a_power_cut_leaves_a_step_with_the_users_bytes_of_that_step) {
  watched_pool pool;
  pool.watch("extra");
  auto shard = small_shard("extra");
  BOOST_REQUIRE(enroll(pool.at(), shard));
  save_both_ways(pool, shard, 7);
  BOOST_TEST(pool.violations() == 0u, pool.first_violation());
}

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

BOOST_AUTO_TEST_CASE(a_removal_takes_what_it_names_and_nothing_else) {
  for (auto watches_subject : {true, false}) {
    watched_pool pool;
    for (auto name : {subject, beside}) {
      BOOST_REQUIRE(enroll(pool.at(), small_shard(name)));
      save_both_ways(pool, small_shard(name), 2);
      pool.at().leave(name, 0, false);
    }
    pool.watch(watches_subject ? subject : beside);
    remove_beside_another(pool, watches_subject);
    BOOST_TEST(pool.violations() == 0, pool.first_violation());
    BOOST_TEST(pool.different_images() > 4u);
  }
}

BOOST_AUTO_TEST_CASE(a_power_cut_leaves_the_model_of_the_repository_or_the_one_before) {
  watched_pool pool;
  pool.watch(subject, "stored");
  store_generation(pool, 1);
  BOOST_REQUIRE(await<void>([&](auto done) { pool.models().pin(subject, true, std::move(done)); }));
  store_generation(pool, 2);
  auto reader = open(pool.models(), subject);
  BOOST_REQUIRE(reader);
  store_generation(pool, 3);
  reader = fail(errc::ok, "");
  pool.allow({0, 3});
  BOOST_REQUIRE(erase(pool.models(), subject).ok());
  pool.allow({0});
  store_generation(pool, 1);
  BOOST_TEST(pool.violations() == 0, pool.first_violation());
  BOOST_TEST(pool.different_images() > 50u);
}

BOOST_AUTO_TEST_CASE(the_check_notices_a_record_that_is_not_written_back) {
  check_notices({.no_flushes = true});
}

BOOST_AUTO_TEST_CASE(the_check_notices_bytes_that_are_not_written_back) {
  check_notices({.no_bulk = true});
}

BOOST_AUTO_TEST_CASE(the_check_notices_one_line_that_is_not_written_back) {
  check_notices({.first_line_of_bulk = true});
}

BOOST_AUTO_TEST_SUITE_END()
