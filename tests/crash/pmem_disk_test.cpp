// Cuts the power of a pool on a disk. The pool opens, and its newest step and model are those that
// were acknowledged, or those under way.
#include "crash_rounds.hpp"

#include <millrace/tests/support/crash_child.hpp>
#include <millrace/tests/support/disk/history.hpp>
#include <millrace/tests/support/disk/trees.hpp>
#include <millrace/tests/support/process.hpp>
#include <millrace/tests/support/skipped.hpp>

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <vector>

using namespace millrace::testing;

namespace {

// Of so many images, none shows a problem when every sync is there.
constexpr int images = 40;

const std::string pool = "pool";

/// Saves of one shard and stores of one model, in turns.
class script {
public:
  script() {
    commands_.push_back({"enroll subject 0 1 1", 0, 0});
    for (std::uint64_t i = 1; i <= 6; ++i) {
      commands_.push_back({fmt::format("save subject 0 1 {}", i), i, i - 1});
      commands_.push_back({fmt::format("store model {}", i), i, i});
    }
  }

  void write(const std::string& path) const {
    std::ofstream file{path};
    for (auto& c : commands_)
      file << c.words << '\n';
  }

  std::size_t size() const { return commands_.size(); }

  /// Returns true when this may be newest after so many commands were acknowledged.
  bool allows(std::size_t acknowledged, const std::string& kind, const std::string& found) const {
    auto newest_after = [&](std::size_t commands) {
      if (commands == 0)
        return std::to_string(0);
      auto& last = commands_[commands - 1];
      return std::to_string(kind == "checkpoint" ? last.step : last.generation);
    };
    return found == newest_after(acknowledged) ||
      (acknowledged < commands_.size() && found == newest_after(acknowledged + 1));
  }

private:
  struct command {
    std::string words;
    std::uint64_t step, generation; // newest once it is acknowledged
  };
  std::vector<command> commands_;
};

/// Opens images in a process of its own, since libpmemobj opens one pool of an id at a time.
class image_reader {
public:
  image_reader() { BOOST_REQUIRE(child_.hear() == "ready"); }

  std::string newest(const std::string& image, const std::string& kind, const std::string& name) {
    child_.say(image + " " + kind + " " + name);
    return child_.hear().value_or("the process that opens it died");
  }

private:
  crash_child child_{PMEM_ORDER_CHILD, "", ""};
};

/// The first problem that power cuts leave to the next process.
std::string problem_after_power_cuts(
  const disk::history& recorded, const script& commands, int count) {
  dice random{17};
  image_reader reader;
  for (int i = 0; i < count; ++i) {
    scratch image;
    auto end = recorded.instant(random);
    recorded.make_image(end, random, image / "root");
    auto lines = lines_of(recorded.said_before(end));
    auto path = image / "root/pool";
    auto problem = [&](const std::string& what) {
      return fmt::format("image {}, before event {}: {}", i, end, what);
    };
    if (!std::filesystem::exists(path)) {
      if (lines > 0)
        return problem("there is no pool");
      continue;
    }
    // The first line says that the pool is open. Reading goes on with what it found.
    auto acknowledged = lines == 0 ? 0 : lines - 1;
    for (auto& [kind, name] :
         {std::pair<std::string, std::string>{"checkpoint", "subject"}, {"stored", "model"}}) {
      auto found = reader.newest(path, kind, name);
      if (!commands.allows(acknowledged, kind, found))
        return problem(fmt::format("{} commands, newest {}: {}", acknowledged, kind, found));
    }
  }
  return {};
}

} // namespace

BOOST_AUTO_TEST_SUITE(pmem_disk)

BOOST_AUTO_TEST_CASE(a_power_cut_leaves_the_newest_or_the_next_and_every_sync_is_needed) {
  scratch root, beside;
  script commands;
  commands.write(beside / "script");
  auto command = disk::history::environment(root.path.string(), beside / "log");
  for (auto& word : std::vector<std::string>{
         "/bin/sh", "-c", "exec \"$0\" \"$1\" < \"$2\"", PMEM_CRASH_CHILD, root / "pool:16",
         beside / "script"})
    command.push_back(word);
  auto ran = run_program(command);
  BOOST_TEST_REQUIRE(ran.code == 0, ran.out << ran.err);
  disk::history recorded{root.path.string(), beside / "log"};
  if (!recorded.has(disk::event_kind::written_back))
    return skipped("a pool on a disk: temporary files are in memory here");
  BOOST_TEST(lines_of(recorded.said_before(recorded.size())) == commands.size() + 1);
  recorded.make_copy(recorded.size(), beside / "copy");
  BOOST_TEST(difference_of_trees(root.path.string(), beside / "copy") == "");
  BOOST_TEST(problem_after_power_cuts(recorded, commands, crash_rounds(images)) == "");
  auto needs = [&](
                 const std::string& what, disk::event_kind kind, const std::string& name,
                 std::size_t first = 0, std::size_t count = ~std::size_t{0}) {
    auto defective = recorded;
    auto is_it = [=](auto one, const std::string& path) { return one == kind && path == name; };
    defective.plant(is_it, first, count);
    BOOST_TEST(
      problem_after_power_cuts(defective, commands, rounds_to_find(images)) != "",
      "not needed: " << what);
  };
  needs("msync of records", disk::event_kind::written_back, pool);
  // The pool's header is written before the first one, and slots before each of the others.
  needs("fsync of a new pool", disk::event_kind::synced, pool, 0, 1);
  needs("fsync of slots", disk::event_kind::synced, pool, 1);
  needs("fsync of the pool's directory", disk::event_kind::names_synced, "");
}

BOOST_AUTO_TEST_SUITE_END()
