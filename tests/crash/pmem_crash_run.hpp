// Kills a process that saves and stores at any instant. The pool opens afterwards. Its newest
// complete step is the one acknowledged last or the one under way, and so is the version of each
// model of the repository, byte for byte. Used by the crash tests of pools.
#pragma once

#include "crash_models.hpp"
#include "crash_rounds.hpp"
#include "left_pool.hpp"

#include <millrace/core/clock.hpp>
#include <millrace/storage/pmem/kill_points.hpp>
#include <millrace/tests/support/crash_child.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/scratch_directory.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <random>
#include <set>

namespace millrace::testing {

/// What a model must be, kept outside of the pool: settled before a change is asked for, pending
/// until it is acknowledged. Ranks save in turns, one step apart at most: so a step is complete
/// when the slower rank has it.
struct expectation {
  std::uint32_t world_size = 1;
  bool there = false;
  bool maybe_there = false;                     // being registered or erased
  bool erasing = false;                         // shard by shard: a part of it may be left
  std::map<std::uint32_t, bool> attached;       // in the child that lives now
  bool unsure = false;                          // what its last registration has come to
  std::set<std::uint32_t> joined;               // have a part in the run that saves now
  std::map<std::uint32_t, std::uint64_t> lives; // as what they register
  std::map<std::uint32_t, std::uint64_t> known; // as what they are registered
  std::map<std::uint32_t, std::uint64_t> saved; // by rank, acknowledged
  std::optional<std::pair<std::uint32_t, std::uint64_t>> saving;
  std::optional<std::uint64_t> leaves; // a step is being erased: that which is newest then
  std::uint64_t saving_since_ns = 0;

  std::uint64_t complete(bool with_pending) const {
    auto least = ~std::uint64_t{0};
    for (std::uint32_t rank = 0; rank < world_size; ++rank) {
      auto found = saved.find(rank);
      auto step = found == saved.end() ? 0 : found->second;
      if (with_pending && saving && saving->first == rank)
        step = saving->second;
      least = std::min(least, step);
    }
    return least;
  }

  /// What was complete is erased, and this is newest now: a job that goes on from it is another
  /// one.
  void fall_back_to(std::uint64_t step, std::uint64_t& last_life) {
    for (std::uint32_t rank = 0; rank < world_size; ++rank)
      saved[rank] = step;
    leaves.reset();
    restart(last_life);
  }

  /// The job goes on from its complete step: what only some ranks have of a later one is of no use
  /// to it.
  void go_back() {
    auto step = complete(false);
    for (auto& [rank, own] : saved)
      own = std::min(own, step);
    joined.clear();
  }

  /// All ranks are other ones from now on: the first of them that registers begins a new run.
  void restart(std::uint64_t& last_life) {
    go_back();
    unsure = false;
    known.clear();
    for (std::uint32_t rank = 0; rank < world_size; ++rank)
      lives[rank] = ++last_life;
  }

  /// A rank is registered: the run goes on when it is the one that was known, or comes new to
  /// others that are there.
  void join(std::uint32_t rank) {
    auto others_live = std::ranges::all_of(joined, [&](auto other) { return attached[other]; });
    if (known[rank] != lives[rank] && (joined.contains(rank) || !others_live))
      go_back();
    known[rank] = lives[rank];
    joined.insert(rank);
    attached[rank] = true;
  }
};

/// What the repository must have under a name; generation 0: nothing.
struct stored_expectation {
  std::uint64_t settled = 0;
  std::optional<std::uint64_t> pending;
  std::uint64_t last = 0; // generation ever asked for
};

/// Where the pool is, and how full it gets.
struct pool_room {
  std::string parent;
  std::uint64_t capacity_mib = 64;
  bool reclaims = false;
};

/// A kill from outside: so long after so many changes. How much is done before it does not hang on
/// the machine's speed.
struct random_kill {
  int changes;
  std::chrono::microseconds delay;
};

class crash_run {
public:
  explicit crash_run(const pool_room& room)
    : directory_(room.parent), capacity_mib_(room.capacity_mib), reclaims_(room.reclaims) {}

  /// Sends changes until the child is dead; returns false when it outlived them all.
  bool run(
    const std::string& kill_point, std::optional<random_kill> kill, std::mt19937_64& random) {
    auto argument = pool_path() + ":" + std::to_string(capacity_mib_) + (reclaims_ ? "r" : "");
    crash_child process{PMEM_CRASH_CHILD, argument, kill_point};
    for (auto& [name, e] : models_) {
      e.attached.clear();
      // A job lives on, or is started anew.
      if (e.unsure || random() % 2 == 0)
        e.restart(last_life_);
    }
    auto hello = process.hear();
    if (!hello)
      return true;
    BOOST_REQUIRE_MESSAGE(*hello == "ready", *hello);
    for (auto change = 0; kill || change < changes_max; ++change) {
      if (kill && change == kill->changes)
        process.kill_after(kill->delay);
      if (!change_something(process, random))
        return true;
    }
    return false;
  }

  void verify(const std::string& when) {
    if (!std::filesystem::exists(pool_path()))
      return; // killed before there was a pool
    auto pool = open_sound(small_pool(pool_path(), capacity_mib_ << 20), when);
    auto at = pool->checkpoints();
    std::set<std::string> there;
    for (auto& m : list_all(*at))
      there.insert(m.model);
    for (auto& [name, e] : models_)
      settle(*at, name, e, there.contains(name), when);
    auto repository = pool->models();
    for (auto& [name, e] : stored_)
      settle_stored(*repository, name, e, when);
  }

  /// Erases everything. Nothing may be left.
  void verify_space_returns() {
    auto pool = storage::open_pool(small_pool(pool_path(), capacity_mib_ << 20));
    BOOST_REQUIRE(pool);
    auto at = (*pool)->checkpoints();
    for (auto& [name, e] : models_)
      if (e.there)
        BOOST_TEST(erase(*at, name).ok());
    auto repository = (*pool)->models();
    for (auto& [name, e] : stored_)
      if (e.settled != 0)
        BOOST_TEST(erase(*repository, name).ok());
    BOOST_TEST(repository->stats().used_bytes == 0u);
    BOOST_TEST(repository->close(10'000).ok());
    repository.reset();
    BOOST_TEST(at->close(10'000).ok());
    at.reset();
    auto left = reserved(*pool);
    BOOST_TEST(left == 0);
    pool->reset();
    require_sound(pool_path(), "when everything is erased");
  }

  std::uint64_t refused() const { return refused_; }

private:
  static constexpr int changes_max = 600; // enough to pass every point that can be

  std::string pool_path() const { return directory_.path() + "/pool"; }

  static std::uint64_t reserved(const std::shared_ptr<storage::pool>& pool) {
    return pool->info().shards;
  }

  // One request and its answer; false when the child is dead.
  bool ask(crash_child& process, const std::string& line, bool may_be_full = false) {
    process.say(line);
    auto answer = process.hear();
    if (!answer)
      return false;
    full_ = may_be_full && answer->starts_with("no_space");
    refused_ += full_;
    BOOST_REQUIRE_MESSAGE(full_ || *answer == "done", line << ": " << *answer);
    return true;
  }

  bool change_something(crash_child& process, std::mt19937_64& random) {
    if (random() % 3 == 0)
      return change_repository(process, random);
    static constexpr std::array names{"alone", "pair", "third", "large"};
    std::string name = names[random() % names.size()];
    auto& e = models_[name];
    e.world_size = name == "pair" ? 2 : 1;
    if (e.there && random() % 24 == 0)
      return erase_model(process, name, e, random() % 2 != 0);
    if (e.there && random() % 24 == 0)
      return erase_step(process, name, e, random() % 2 != 0);
    if (random() % 16 == 0)
      return ask(process, "repack");
    auto rank = static_cast<std::uint32_t>(random() % e.world_size);
    if (!e.attached[rank])
      return register_shard(process, name, e, rank);
    if (random() % 12 == 0) {
      e.attached[rank] = false;
      // Whether that a rank ended in order is known after a kill is open, and with it whether
      // others join its run.
      auto finished = e.world_size == 1 && random() % 2 != 0;
      return ask(process, "leave " + who(name, e, rank) + (finished ? " 1" : " 0"));
    }
    return save_step(process, name, e, rank);
  }

  bool change_repository(crash_child& process, std::mt19937_64& random) {
    // One of them is called as a checkpointed model is.
    static constexpr std::array names{"alone", "net", "other"};
    std::string name = names[random() % names.size()];
    auto& e = stored_[name];
    if (e.settled != 0 && random() % 4 == 0)
      return ask(
        process, (random() % 2 ? "read " : "pin ") + name + " " + std::to_string(random() % 2));
    auto next = e.settled != 0 && random() % 5 == 0 ? 0 : ++e.last;
    e.pending = next;
    auto verb = next == 0 ? "forget " : "store ";
    if (!ask(process, verb + name + " " + std::to_string(next), next != 0))
      return false;
    if (!full_)
      e.settled = next;
    e.pending.reset();
    return true;
  }

  static bool is_stored(storage::bucket& at, const std::string& name, std::uint64_t generation) {
    auto found = open(at, name);
    if (!found || generation == 0)
      return !found && generation == 0;
    auto spec = (*found)->record().spec;
    spec.pinned = false;
    return spec == crash_spec(name, generation) &&
      check_ranges(**found, everything(spec.tensors), crash_seed(name, generation)).ok();
  }

  static void settle_stored(
    storage::bucket& at, const std::string& name, stored_expectation& e, const std::string& when) {
    if (e.pending && is_stored(at, name, *e.pending))
      e.settled = *e.pending;
    e.pending.reset();
    BOOST_CHECK_MESSAGE(
      is_stored(at, name, e.settled),
      when << ": model " << name << " is not of generation " << e.settled << ", nor of the next");
  }

  static std::string who(const std::string& name, const expectation& e, std::uint32_t rank) {
    return name + " " + std::to_string(rank) + " " + std::to_string(e.world_size);
  }

  bool register_shard(
    crash_child& process, const std::string& name, expectation& e, std::uint32_t rank) {
    e.maybe_there = e.unsure = true;
    // It lost its connection, or was replaced.
    if (e.lives[rank] == 0 || random() % 3 == 0)
      e.lives[rank] = ++last_life_;
    if (!ask(process, "enroll " + who(name, e, rank) + " " + std::to_string(e.lives[rank]), true))
      return false;
    e.unsure = false;
    if (!full_) {
      e.there = true;
      e.join(rank);
    }
    e.maybe_there = false;
    return true;
  }

  bool save_step(
    crash_child& process, const std::string& name, expectation& e, std::uint32_t rank) {
    auto step = e.saved[rank] + 1;
    // No rank runs further ahead than the rule above allows.
    if (step > e.complete(false) + 1)
      return true;
    e.saving = {rank, step};
    e.saving_since_ns = wall_clock_ns();
    if (!ask(process, "save " + who(name, e, rank) + " " + std::to_string(step)))
      return false;
    e.saved[rank] = step;
    e.joined.insert(rank);
    e.saving.reset();
    return true;
  }

  // A job that goes ends its registrations, and what it leaves may be read while it is erased.
  bool prepare_removal(
    crash_child& process, const std::string& name, expectation& e, bool is_read) {
    for (auto& [rank, attached] : e.attached) {
      if (attached && !ask(process, "leave " + who(name, e, rank) + " 0"))
        return false;
      attached = false;
    }
    auto newest = std::to_string(e.complete(false));
    return !is_read || newest == "0" || ask(process, "open " + who(name, e, 0) + " " + newest);
  }

  bool erase_model(crash_child& process, const std::string& name, expectation& e, bool is_read) {
    if (!prepare_removal(process, name, e, is_read))
      return false;
    e.maybe_there = e.erasing = true;
    if (!ask(process, "erase " + who(name, e, 0)))
      return false;
    auto world_size = e.world_size;
    e = {};
    e.world_size = world_size;
    return !is_read || ask(process, "close");
  }

  bool erase_step(crash_child& process, const std::string& name, expectation& e, bool is_read) {
    auto step = std::to_string(e.complete(false));
    if (step == "0")
      return true;
    if (!prepare_removal(process, name, e, is_read))
      return false;
    process.say("before " + name + " " + step);
    auto before = process.hear();
    if (!before)
      return false;
    e.leaves = std::stoull(*before);
    if (!ask(process, "forget_step " + who(name, e, 0) + " " + step))
      return false;
    e.fall_back_to(*e.leaves, last_life_);
    return !is_read || ask(process, "close");
  }

  void settle(
    storage::checkpoint_store& at, const std::string& name, expectation& e, bool is_there,
    const std::string& when) {
    BOOST_CHECK_MESSAGE(
      is_there == e.there || e.maybe_there,
      when << ": " << name << (is_there ? " is" : " is not") << " there");
    if (!is_there) {
      auto world_size = e.world_size;
      e = {};
      e.world_size = world_size;
      return;
    }
    e.there = true;
    e.maybe_there = false;
    auto newest = open_version(at, name, 0);
    auto step = newest ? (*newest)->record().version : 0;
    e.unsure |= e.erasing;
    if (std::exchange(e.erasing, false) && step != e.complete(false)) {
      newest = fail(errc::ok, "");
      BOOST_TEST(erase(at, name).ok(), when << ": what is left of " << name);
      auto world_size = e.world_size;
      e = {};
      e.world_size = world_size;
      return;
    }
    if (auto leaves = std::exchange(e.leaves, {}); leaves && step == *leaves)
      e.fall_back_to(step, last_life_);
    BOOST_CHECK_MESSAGE(
      step == e.complete(false) || step == e.complete(true),
      when << ": the newest complete step of " << name << " is " << step << ", not "
           << e.complete(false) << (newest ? "" : ": " + newest.error().to_string()));
    if (e.saving) {
      auto [rank, under_way] = *e.saving;
      auto saved = open_version(at, name, rank, under_way);
      // An earlier run may have left one.
      if (saved && (*saved)->record().stored_at_ns >= e.saving_since_ns) {
        e.saved[rank] = under_way;
        e.joined.insert(rank);
      }
      e.saving.reset();
    }
  }

  scratch_directory directory_;
  std::uint64_t capacity_mib_;
  bool reclaims_;
  std::map<std::string, expectation> models_;
  std::map<std::string, stored_expectation> stored_;
  std::uint64_t last_life_ = 0;
  bool full_ = false;
  std::uint64_t refused_ = 0;
};

/// `missed`: points that are not on this medium's way. Returns how many requests found the pool
/// full.
inline std::uint64_t kill_at_every_point(
  const pool_room& room, const std::set<std::string_view>& missed) {
  crash_run run{room};
  std::mt19937_64 random{1};
  std::set<std::string_view> reached;
  for (auto point : storage::pmem::kill_points)
    for (auto count : {1, 2, 5}) {
      auto where = std::string{point} + ":" + std::to_string(count);
      if (run.run(where, {}, random))
        reached.insert(point);
      run.verify(where);
    }
  run.verify_space_returns();
  for (auto point : storage::pmem::kill_points)
    BOOST_TEST_MESSAGE(point << (reached.contains(point) ? "" : ": not reached"));
  for (auto point : storage::pmem::kill_points)
    BOOST_TEST(reached.contains(point) != missed.contains(point), point);
  BOOST_TEST_MESSAGE("full " << run.refused() << " times");
  return run.refused();
}

/// Each life has fewer than `changes_max` changes and a little. Returns how many requests found the
/// pool full.
inline std::uint64_t kill_at_random(const pool_room& room, int rounds, int changes_max) {
  auto seed = std::random_device{}();
  BOOST_TEST_MESSAGE("seed " << seed);
  std::mt19937_64 random{seed};
  crash_run run{room};
  for (auto round = 0; round < crash_rounds(rounds); ++round) {
    random_kill kill{
      static_cast<int>(random() % static_cast<unsigned>(changes_max)),
      std::chrono::microseconds{random() % 2'000}};
    run.run("", kill, random);
    run.verify("round " + std::to_string(round) + " of seed " + std::to_string(seed));
  }
  run.verify_space_returns();
  BOOST_TEST_MESSAGE("full " << run.refused() << " times");
  return run.refused();
}

} // namespace millrace::testing
