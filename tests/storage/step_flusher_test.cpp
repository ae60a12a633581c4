// Tests how steps of a pool are copied on, for any number of ranks and models: whole steps only,
// until the set end.
#include <millrace/storage/flush/flushed_step.hpp>
#include <millrace/storage/flush/step_flusher.hpp>
#include <millrace/tests/support/checkpoint_driving.hpp>
#include <millrace/tests/support/fake_checkpoint_store.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/opened_in_memory.hpp>
#include <millrace/tests/support/pool_place.hpp>
#include <millrace/tests/support/process.hpp>
#include <millrace/tests/support/scratch_directory.hpp>

#include <boost/test/unit_test.hpp>

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr std::uint32_t patience_ms = 120'000;

storage::flush::step_flusher_options flushing_to(
  const scratch_directory& dir, std::uint32_t every = 1) {
  storage::flush::step_flusher_options o;
  o.provider = "pool";
  o.flush.directory = dir.path();
  o.every = every;
  return o;
}

std::shared_ptr<storage::flush::step_flusher> flusher_of(
  storage::flush::step_flusher_options options, std::shared_ptr<storage::checkpoint_store> store) {
  auto made = storage::flush::step_flusher::open(std::move(options), std::move(store));
  BOOST_TEST_REQUIRE(made.has_value(), why(made));
  return *made;
}

/// A pool whose shards are small.
struct small_pool {
  pool_place medium{pool_way::memory};
  std::shared_ptr<storage::pool> pool;

  small_pool() {
    auto opened = storage::open_pool(medium.options());
    BOOST_TEST_REQUIRE(opened.has_value(), why(opened));
    pool = *opened;
  }

  storage::checkpoint_store& store() const { return *pool->checkpoints(); }

  shard_spec save_of(
    const std::string& model, std::uint32_t rank, std::uint32_t world, std::uint64_t step) const {
    auto shard = shard_of(model, {100, 200}, rank, world, storage::flush::step_flusher::keep_min);
    auto known = enroll(store(), shard);
    BOOST_TEST_REQUIRE(known.has_value(), why(known));
    auto saved = save(store(), shard, step);
    BOOST_TEST_REQUIRE(saved.has_value(), why(saved));
    store().leave(model, rank, false);
    return shard;
  }
};

void check_flushed(
  const scratch_directory& dir, const std::string& model, std::uint64_t step, std::size_t ranks) {
  auto latest = storage::flush::open_flushed(dir.path(), model);
  BOOST_TEST_REQUIRE(latest.has_value(), why(latest));
  BOOST_TEST(latest->manifest().step == step);
  BOOST_TEST(latest->manifest().shards.size() == ranks);
  auto whole = latest->verify();
  BOOST_TEST(whole.ok(), whole.to_string());
}

/// Its versions never come, as those of a file system that hangs.
class silent_store final : public fake_checkpoint_store {
public:
  void open(
    std::string, std::uint32_t rank, storage::version_choice which,
    completion<std::shared_ptr<storage::opened_model>> done) override {
    auto step = which.step.value_or(1);
    auto version = std::make_shared<opened_in_memory>(shard_at(rank, step), step, 1);
    version->be_silent();
    done(std::shared_ptr<storage::opened_model>{std::move(version)});
  }
};

} // namespace

BOOST_AUTO_TEST_SUITE(flushing_steps)

BOOST_AUTO_TEST_CASE(a_step_of_a_hundred_ranks_is_copied_whole) {
  constexpr std::uint32_t ranks = 100;
  small_pool p;
  scratch_directory dir;
  auto subject = flusher_of(flushing_to(dir), p.pool->checkpoints());
  shard_spec last;
  for (std::uint32_t rank = 0; rank < ranks; ++rank)
    last = p.save_of("wide", rank, ranks, 7);
  subject->saved(last.model, 7);
  auto closed = subject->close(patience_ms);
  BOOST_TEST(closed.ok(), closed.to_string());
  check_flushed(dir, "wide", 7, ranks);
  BOOST_TEST((subject->counters() == flush_counters{0, 1, 0, ranks * 300}));
}

BOOST_AUTO_TEST_CASE(a_start_catches_up_with_a_hundred_models) {
  constexpr int models = 100;
  small_pool p;
  scratch_directory dir;
  for (int i = 0; i < models; ++i)
    p.save_of("m" + std::to_string(i), 0, 1, 5);
  auto subject = flusher_of(flushing_to(dir), p.pool->checkpoints());
  auto closed = subject->close(patience_ms);
  BOOST_TEST(closed.ok(), closed.to_string());
  for (int i = 0; i < models; ++i)
    check_flushed(dir, "m" + std::to_string(i), 5, 1);
}

BOOST_AUTO_TEST_CASE(the_newest_step_is_copied_though_others_were_complete_meanwhile) {
  small_pool p;
  scratch_directory dir;
  auto subject = flusher_of(flushing_to(dir, 2), p.pool->checkpoints());
  for (std::uint64_t step = 1; step <= 9; ++step)
    subject->saved(p.save_of("m", 0, 1, step).model, step);
  BOOST_TEST(subject->close(patience_ms).ok());
  check_flushed(dir, "m", 8, 1);
}

BOOST_AUTO_TEST_CASE(what_cannot_be_copied_is_counted_and_the_next_step_is_copied) {
  small_pool p;
  scratch_directory dir;
  auto subject = flusher_of(flushing_to(dir), p.pool->checkpoints());
  auto shard = p.save_of("m", 0, 1, 1);
  subject->saved(shard.model, 99); // not there
  subject->saved(shard.model, 1);
  BOOST_TEST(subject->close(patience_ms).ok());
  check_flushed(dir, "m", 1, 1);
  BOOST_TEST((subject->counters() == flush_counters{0, 1, 1, 300}));
}

BOOST_AUTO_TEST_CASE(closing_leaves_a_copy_behind_that_does_not_end) {
  scratch_directory dir;
  auto store = std::make_shared<silent_store>();
  auto shard = shard_of("m", {100});
  BOOST_TEST_REQUIRE(enroll(*store, shard).has_value());
  auto subject = flusher_of(flushing_to(dir), store);
  subject->saved(shard.model, 1);
  auto half = dir.path() + "/m/step-1";
  BOOST_TEST_REQUIRE(eventually([&] { return std::filesystem::exists(half); }));
  auto closed = subject->close(1);
  BOOST_TEST((closed.code() == errc::deadline_exceeded), closed.to_string());
  BOOST_TEST(closed.detail().find(dir.path()) != std::string::npos, closed.to_string());
}

BOOST_AUTO_TEST_SUITE_END()
