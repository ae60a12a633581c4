// Kills a process at any instant. Every acknowledged version is there afterwards, and one under way
// is the old or the new one, whole.
#include "crash_models.hpp"
#include "crash_rounds.hpp"

#include <millrace/tests/support/crash_child.hpp>
#include <millrace/tests/support/disk/history.hpp>
#include <millrace/tests/support/disk/trees.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/process.hpp>
#include <millrace/tests/support/scratch_directory.hpp>
#include <millrace/tests/support/skipped.hpp>
#include <millrace/tests/support/small_disk.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <sstream>

using namespace millrace;
using namespace millrace::testing;

namespace {

// Of so many images, none shows a problem when every sync is there.
constexpr int images = 100;

/// What must be in the bucket, kept outside of it: written before a change is asked for (pending)
/// and after it was acknowledged. Generation 0: erased or never stored.
class oracle {
public:
  explicit oracle(std::string path) : path_(std::move(path)) {}

  void pending(const std::string& name, std::uint64_t generation) { append('?', name, generation); }
  void acknowledged(const std::string& name, std::uint64_t generation) {
    append('!', name, generation);
  }

  struct expectation {
    std::uint64_t settled = 0;
    std::optional<std::uint64_t> pending;
  };
  std::map<std::string, expectation> read() const {
    std::map<std::string, expectation> expected;
    std::ifstream file{path_};
    char mark;
    std::string name;
    std::uint64_t generation;
    while (file >> mark >> name >> generation) {
      if (mark == '?')
        expected[name].pending = generation;
      else
        expected[name] = {generation, std::nullopt};
    }
    return expected;
  }

private:
  void append(char mark, const std::string& name, std::uint64_t generation) {
    std::ofstream{path_, std::ios::app} << mark << ' ' << name << ' ' << generation << '\n';
  }
  std::string path_;
};

bool holds(storage::bucket& subject, const std::string& name, std::uint64_t generation) {
  if (generation == 0) {
    auto model = open(subject, name);
    return !model && model.error().code() == errc::not_found;
  }
  auto model = open(subject, name);
  if (!model || (*model)->record().spec != crash_spec(name, generation))
    return false;
  model->reset();
  return check_model(subject, name, crash_seed(name, generation)).ok();
}

class crash_run {
public:
  /// Sends changes until the child is dead; `kill_point` or `delay` says when that is.
  void run(
    const std::string& kill_point, std::chrono::microseconds delay, std::mt19937_64& random) {
    crash_child process{ROCKSDB_CRASH_CHILD, bucket_path(), kill_point};
    if (process.hear() != "ready")
      return;
    if (delay.count() > 0)
      process.kill_after(delay);
    for (auto change = 0; change < 200; ++change) {
      auto name = "m" + std::to_string(random() % 4);
      auto known = oracle_.read()[name].settled;
      auto generation = known != 0 && random() % 5 == 0 ? 0 : ++generation_;
      oracle_.pending(name, generation);
      process.say(
        generation == 0 ? "erase " + name : "store " + name + " " + std::to_string(generation));
      auto answer = process.hear();
      if (!answer)
        return;
      BOOST_REQUIRE_MESSAGE(*answer == "done", *answer);
      oracle_.acknowledged(name, generation);
    }
  }

  /// Opens what the child left and compares it with the oracle; a pending change becomes settled.
  void verify(const std::string& when) {
    auto subject = open_crash_bucket(bucket_path());
    BOOST_REQUIRE_MESSAGE(subject, when << ": " << why(subject));
    std::uint64_t models = 0;
    for (auto& [name, expected] : oracle_.read()) {
      auto found = expected.settled;
      if (!holds(**subject, name, found) && expected.pending)
        found = *expected.pending;
      BOOST_CHECK_MESSAGE(
        holds(**subject, name, found),
        when << ": " << name << " is neither generation " << expected.settled
             << " nor one under way");
      oracle_.acknowledged(name, found);
      models += found != 0;
    }
    auto stats = (*subject)->stats();
    BOOST_TEST(stats.models == models);
    auto whole = space_of_models();
    BOOST_TEST(stats.used_bytes - stats.descriptions_bytes == whole.data_bytes);
    // Here a model may lie in several places, whose list is longer.
    BOOST_TEST(stats.descriptions_bytes >= whole.described_bytes);
    BOOST_TEST(stats.descriptions_bytes <= whole.described_bytes + models * 4096);
  }

  /// With everything erased nothing may be left.
  void verify_space_returns() {
    auto subject = open_crash_bucket(bucket_path());
    BOOST_REQUIRE(subject);
    for (auto& [name, expected] : oracle_.read())
      if (expected.settled != 0)
        BOOST_TEST(erase(**subject, name).ok());
    BOOST_TEST(settles_at(**subject, 0));
  }

private:
  struct space {
    std::uint64_t data_bytes = 0;
    std::uint64_t described_bytes = 0;
  };

  // The space that the same models take in a bucket that never saw a crash.
  space space_of_models() {
    space sum;
    for (auto& [name, expected] : oracle_.read()) {
      if (expected.settled == 0)
        continue;
      auto& known = space_of_[{name, expected.settled}];
      if (known.described_bytes == 0) {
        auto room = reserve(*unharmed_, crash_spec(name, expected.settled));
        auto stats = unharmed_->stats();
        known = {stats.used_bytes - stats.descriptions_bytes, stats.descriptions_bytes};
        room->reset();
        BOOST_REQUIRE(settles_at(*unharmed_, 0));
      }
      sum.data_bytes += known.data_bytes;
      sum.described_bytes += known.described_bytes;
    }
    return sum;
  }

  std::string bucket_path() const { return directory_.path() + "/bucket"; }

  scratch_directory directory_;
  std::shared_ptr<storage::bucket> unharmed_ = *open_crash_bucket(directory_.path() + "/unharmed");
  oracle oracle_{directory_.path() + "/oracle"};
  std::map<std::pair<std::string, std::uint64_t>, space> space_of_;
  std::uint64_t generation_ = 0;
};

/// A change of one model; generation 0: it is erased.
struct model_change {
  std::string name;
  std::uint64_t generation = 0;
};

std::vector<model_change> some_changes(int count) {
  dice random{15};
  std::set<std::string> there;
  std::vector<model_change> all;
  for (std::uint64_t i = 1; std::ssize(all) < count; ++i) {
    auto name = "m" + std::to_string(random.below(4));
    auto erases = there.contains(name) && random.percent(20);
    if (erases)
      there.erase(name);
    else
      there.insert(name);
    all.push_back({name, erases ? 0 : i});
  }
  return all;
}

/// Says what does not hold in the bucket after so many changes were acknowledged.
std::string problem_in(
  const std::string& path, const std::vector<model_change>& changes, std::size_t acknowledged) {
  auto subject = open_crash_bucket(path);
  if (!subject)
    return why(subject);
  std::map<std::string, std::uint64_t> expected;
  for (std::size_t i = 0; i < acknowledged; ++i)
    expected[changes[i].name] = changes[i].generation;
  if (acknowledged < changes.size())
    if (auto& next = changes[acknowledged]; holds(**subject, next.name, next.generation))
      expected[next.name] = next.generation;
  std::uint64_t models = 0;
  for (auto& [name, generation] : expected) {
    if (!holds(**subject, name, generation))
      return fmt::format("{} is not generation {}", name, generation);
    models += generation != 0;
  }
  if (auto stats = (*subject)->stats(); stats.models != models)
    return fmt::format("{} models in place of {}", stats.models, models);
  // It can be used on.
  auto stored = store(**subject, crash_spec("later", 1), crash_seed("later", 1));
  return stored ? "" : why(stored);
}

/// The first problem that power cuts leave to the next process.
std::string problem_after_power_cuts(
  const disk::history& recorded, const std::vector<model_change>& changes, int count) {
  dice random{16};
  for (int i = 0; i < count; ++i) {
    scratch_directory image;
    auto end = recorded.instant(random);
    recorded.make_image(end, random, image.path() + "/root");
    // The first line says that the bucket is open.
    auto lines = lines_of(recorded.said_before(end));
    auto problem = problem_in(image.path() + "/root/bucket", changes, lines == 0 ? 0 : lines - 1);
    if (!problem.empty())
      return fmt::format("image {}, before event {}: {}", i, end, problem);
  }
  return {};
}

} // namespace

BOOST_AUTO_TEST_SUITE(rocksdb_crash)

BOOST_AUTO_TEST_CASE(a_power_cut_leaves_old_or_new_and_every_sync_is_needed) {
  scratch_directory root, beside;
  auto changes = some_changes(40);
  {
    std::ofstream script{beside.path() + "/script"};
    for (auto& c : changes)
      if (c.generation == 0)
        script << "erase " << c.name << '\n';
      else
        script << "store " << c.name << ' ' << c.generation << '\n';
  }
  auto command = disk::history::environment(root.path(), beside.path() + "/log");
  for (auto& word : std::vector<std::string>{
         "/bin/sh", "-c", "exec \"$0\" \"$1\" < \"$2\"", ROCKSDB_CRASH_CHILD,
         root.path() + "/bucket", beside.path() + "/script"})
    command.push_back(word);
  auto ran = run_program(command);
  BOOST_TEST_REQUIRE(ran.code == 0, ran.out << ran.err);
  disk::history recorded{root.path(), beside.path() + "/log"};
  BOOST_TEST(lines_of(recorded.said_before(recorded.size())) == changes.size() + 1);
  recorded.make_copy(recorded.size(), beside.path() + "/copy");
  BOOST_TEST(difference_of_trees(root.path(), beside.path() + "/copy") == "");
  BOOST_TEST(problem_after_power_cuts(recorded, changes, crash_rounds(images)) == "");
  auto needs = [&](const std::string& what, const disk::history::defect& forgotten) {
    auto defective = recorded;
    defective.plant(forgotten);
    BOOST_TEST(
      problem_after_power_cuts(defective, changes, rounds_to_find(images)) != "",
      "not needed: fsync of " << what);
  };
  needs("segments", [](auto kind, const std::string& path) {
    return kind == disk::event_kind::synced && path.starts_with("bucket/segments/");
  });
  needs("the index", [](auto, const std::string& path) { return path.ends_with(".log"); });
  needs("the names of segments", [](auto, const std::string& path) {
    return path == "bucket/segments";
  });
}

BOOST_AUTO_TEST_CASE(a_kill_at_a_named_point_leaves_old_or_new) {
  crash_run run;
  std::mt19937_64 random{1};
  for (auto point :
       {"rocksdb.grow.before_allocate", "rocksdb.grow.before_sync", "rocksdb.commit.before_write",
        "rocksdb.publish.before_sync", "rocksdb.publish.before_write",
        "rocksdb.publish.after_write"})
    for (auto count : {1, 2, 5}) {
      auto where = point + (":" + std::to_string(count));
      run.run(where, {}, random);
      run.verify(where);
    }
  run.verify_space_returns();
}

BOOST_AUTO_TEST_CASE(a_kill_at_any_instant_leaves_old_or_new) {
  auto seed = std::random_device{}();
  BOOST_TEST_MESSAGE("seed " << seed);
  std::mt19937_64 random{seed};
  crash_run run;
  for (auto round = 0; round < 100; ++round) {
    auto delay = std::chrono::microseconds{1 + random() % 60'000};
    run.run("", delay, random);
    run.verify("round " + std::to_string(round) + " of seed " + std::to_string(seed));
  }
  run.verify_space_returns();
}

// Every round begins on a full disk: the last one ended with a kill on one.
BOOST_DATA_TEST_CASE(
  a_kill_on_a_full_disk_leaves_a_bucket_that_starts_and_removes_models,
  boost::unit_test::data::make(all_disk_kinds), kind) {
  small_disk disk{160u << 20, kind};
  if (!disk.mounted())
    return skipped(small_disk::missing(kind));
  auto path = disk.path() + "/bucket";
  std::set<std::uint64_t> kept;
  std::uint64_t next = 1;
  for (auto round = 0; round < 6; ++round) {
    crash_child process{ROCKSDB_CRASH_CHILD, path, ""};
    auto asked = [&](const std::string& change) {
      process.say(change);
      auto answer = process.hear();
      BOOST_REQUIRE_MESSAGE(answer, change << ": the child is gone");
      return *answer;
    };
    auto ready = process.hear();
    BOOST_REQUIRE_MESSAGE(ready == "ready", ready.value_or("the child is gone"));
    if (round > 0) {
      // Half of the models go while the disk is full.
      for (auto half = kept.size() / 2; half > 0; --half) {
        auto oldest = *kept.begin();
        BOOST_REQUIRE_EQUAL(asked("erase m" + std::to_string(oldest)), "done");
        kept.erase(oldest);
      }
      disk.free();
    }
    auto stored = [&](std::uint64_t generation) {
      auto number = std::to_string(generation);
      return asked("store m" + number + " " + number);
    };
    for (auto count = 0; count < 20; ++count, ++next) {
      BOOST_REQUIRE_EQUAL(stored(next), "done");
      kept.insert(next);
    }
    disk.fill();
    auto answer = stored(next);
    for (; answer == "done"; answer = stored(++next))
      kept.insert(next);
    BOOST_TEST(answer.find("no_space") != std::string::npos, answer);
    ++next;
    disk.fill();
    process.kill();
    auto subject = open_crash_bucket(path);
    BOOST_REQUIRE_MESSAGE(subject, why(subject));
    BOOST_TEST((*subject)->stats().models == kept.size());
    for (auto generation : kept)
      BOOST_TEST(holds(**subject, "m" + std::to_string(generation), generation));
    subject->reset();
    disk.fill();
  }
}

BOOST_AUTO_TEST_SUITE_END()
