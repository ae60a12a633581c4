// Kills the flushing process at any instant. `latest` names a whole step that verifies and is not
// older than the one acknowledged, and the next process goes on.
#include "crash_rounds.hpp"

#include <millrace/storage/flush/flushed_step.hpp>
#include <millrace/storage/flush/model_directory.hpp>
#include <millrace/tests/support/disk/history.hpp>
#include <millrace/tests/support/disk/trees.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/opened_in_memory.hpp>
#include <millrace/tests/support/process.hpp>
#include <millrace/tests/support/skipped.hpp>
#include <millrace/tests/support/small_disk.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <random>
#include <sstream>
#include <thread>

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::storage;
using namespace millrace::storage::flush;

namespace {

// Of so many images, none shows a problem when every sync is there.
constexpr int images = 200;

const std::vector<std::string> points = {"flush.before_shard",      "archive.synced",
                                         "archive.renamed",         "flush.after_shard",
                                         "flush.after_description", "flush.after_manifest",
                                         "flush.before_latest",     "flush.after_latest",
                                         "flush.manifest_removed",  "flush.descriptions_removed"};

std::vector<std::string> child_command(
  const scratch& dir, std::uint64_t first, std::uint64_t last, const std::string& point = "") {
  std::vector<std::string> command;
  if (!point.empty())
    command = {"/usr/bin/env", "MILLRACE_KILL_POINT=" + point};
  for (auto& word :
       {std::string{FLUSH_CRASH_CHILD}, dir / "flushed", std::to_string(first),
        std::to_string(last)})
    command.push_back(word);
  return command;
}

std::uint64_t last_line(const std::string& out) {
  std::uint64_t last = 0;
  std::istringstream in{out};
  for (std::uint64_t step; in >> step;)
    last = step;
  return last;
}

// Says what does not hold after a kill or a power cut. `acknowledged` 0: no step was.
std::string problem_in(
  const std::string& directory, std::uint64_t acknowledged, std::uint64_t begun) {
  auto opened = open_flushed(directory, "model");
  if (!opened)
    return opened.error().code() == errc::not_found && acknowledged == 0 ? "" : why(opened);
  auto step = opened->manifest().step;
  if (step < acknowledged || step > begun)
    return fmt::format("step {}, where {} was acknowledged", step, acknowledged);
  if (auto verified = opened->verify(); !verified.ok())
    return verified.to_string();
  for (std::uint32_t rank : {0, 1}) {
    auto shard = opened->open_shard(rank);
    if (!shard)
      return why(shard);
    if (auto other = difference(**shard, shard_at(rank, step, 300'000)); !other.empty())
      return other;
  }
  // Any other step with a manifest is whole as well.
  for (auto& place : model_directory::at(directory, "model").steps())
    if (place.whole) {
      auto other = open_flushed(directory, "model", place.step);
      if (!other || !other->verify().ok())
        return place.name + " is not whole";
    }
  return {};
}

void check(const scratch& dir, std::uint64_t acknowledged, std::uint64_t begun) {
  BOOST_TEST(problem_in(dir / "flushed", acknowledged, begun) == "");
}

// A process without a kill point goes on from there and leaves nothing of the dead one.
void go_on(const scratch& dir, std::uint64_t last) {
  auto ran = run_program(child_command(dir, last + 1, last + 3));
  BOOST_TEST(ran.code == 0, ran.out);
  check(dir, last + 3, last + 3);
  std::size_t steps = 0;
  for (auto& entry : std::filesystem::recursive_directory_iterator{dir / "flushed"}) {
    auto name = entry.path().filename().string();
    BOOST_TEST(!name.starts_with(".millrace-writing-"), name);
    steps += name.starts_with("step-");
  }
  BOOST_TEST(steps == 2u);
}

// The first problem that power cuts leave to a reader.
std::string problem_after_power_cuts(const disk::history& recorded, int count) {
  dice random{14};
  for (int i = 0; i < count; ++i) {
    scratch image;
    auto end = recorded.instant(random);
    recorded.make_image(end, random, image / "root");
    auto acknowledged = last_line(recorded.said_before(end));
    auto problem = problem_in(image / "root/flushed", acknowledged, acknowledged + 1);
    if (!problem.empty())
      return fmt::format("image {}, before event {}: {}", i, end, problem);
  }
  return {};
}

} // namespace

BOOST_AUTO_TEST_SUITE(flush_crashes)

BOOST_AUTO_TEST_CASE(latest_is_whole_after_a_power_cut_and_every_sync_is_needed) {
  scratch root, log;
  auto command = disk::history::environment(root.path.string(), log / "log");
  auto child = child_command(root, 1, 6);
  command.insert(command.end(), child.begin(), child.end());
  auto ran = run_program(command);
  BOOST_TEST_REQUIRE(ran.code == 0, ran.out << ran.err);
  disk::history recorded{root.path.string(), log / "log"};
  recorded.make_copy(recorded.size(), log / "copy");
  BOOST_TEST(difference_of_trees(root.path.string(), log / "copy") == "");
  BOOST_TEST(problem_after_power_cuts(recorded, crash_rounds(images)) == "");
  for (auto name :
       {"rank-0-of-2.safetensors", "rank-0-of-2.json", "manifest.json", "latest", "/model",
        "/step-1"}) {
    auto defective = recorded;
    defective.plant([=](auto, const std::string& path) { return path.ends_with(name); });
    BOOST_TEST(
      problem_after_power_cuts(defective, rounds_to_find(images)) != "",
      "not needed: fsync of " << name);
  }
}

BOOST_DATA_TEST_CASE(latest_is_whole_after_a_kill_at, boost::unit_test::data::make(points), point) {
  std::size_t killed = 0;
  for (int count : {1, 2, 3, 5, 8}) {
    scratch dir;
    auto ran = run_program(child_command(dir, 1, 5, point + ":" + std::to_string(count)));
    BOOST_TEST((ran.code == 0 || ran.code == 128 + SIGKILL), ran.out);
    killed += ran.code == 128 + SIGKILL;
    check(dir, last_line(ran.out), last_line(ran.out) + 1);
    go_on(dir, 5);
  }
  BOOST_TEST(killed >= 2u);
}

BOOST_AUTO_TEST_CASE(latest_is_whole_after_a_kill_at_random) {
  std::mt19937_64 random{11};
  scratch dir;
  std::uint64_t acknowledged = 0;
  for (int round = 0; round < 60; ++round) {
    child_process child{child_command(dir, acknowledged + 1, acknowledged + 100)};
    std::this_thread::sleep_for(std::chrono::microseconds{random() % 300'000});
    child.signal(SIGKILL);
    BOOST_TEST(child.wait() == 128 + SIGKILL);
    auto last = std::max(acknowledged, last_line(child.out()));
    check(dir, last, last + 1);
    acknowledged = last;
  }
  BOOST_TEST(acknowledged > 0u);
  go_on(dir, acknowledged);
}

// Some of the steps fit, and some do not.
BOOST_AUTO_TEST_CASE(latest_is_whole_after_kills_while_the_file_system_is_full) {
  small_disk disk{8 << 20};
  if (!disk.mounted())
    return skipped("a full file system: needs root and mount");
  std::mt19937_64 random{12};
  scratch dir{std::filesystem::path{disk.path()}};
  std::uint64_t acknowledged = 0;
  int killed = 0, refused = 0;
  for (int round = 0; round < 60; ++round) {
    disk.fill(random() % (1 << 20));
    child_process child{child_command(dir, acknowledged + 1, acknowledged + 100)};
    std::this_thread::sleep_for(std::chrono::microseconds{random() % 100'000});
    child.signal(SIGKILL);
    auto code = child.wait();
    killed += code == 128 + SIGKILL;
    refused += child.out().find("no_space") != std::string::npos;
    auto last = std::max(acknowledged, last_line(child.out()));
    check(dir, last, last + 1);
    acknowledged = last;
    disk.free();
  }
  BOOST_TEST(killed > 5);
  BOOST_TEST(refused > 5);
  BOOST_TEST(acknowledged > 0u);
  go_on(dir, acknowledged);
}

BOOST_AUTO_TEST_SUITE_END()
