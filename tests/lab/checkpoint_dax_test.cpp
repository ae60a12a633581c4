// Kills training jobs and the service, each in a process of its own, over persistent memory. Slots
// are filled where they lie, and a kill loses at most the step under way. MILLRACE_TEST_PMEM names
// the directory or the device.
#include <millrace/tests/support/kill_points.hpp>
#include <millrace/tests/support/training.hpp>

#include <signal.h>

using namespace millrace::testing;
using nlohmann::json;

namespace {

constexpr int mib = 4;

/// A pool made by command, in a directory or on the device.
std::string make_pool() {
  std::string where = std::getenv("MILLRACE_TEST_PMEM");
  std::vector<std::string> words = {"pool", "create", where, "--medium", "dax", "--json"};
  if (std::filesystem::is_directory(where)) {
    words[2] += "/millrace.pool";
    words.insert(words.end(), {"--size", "64MiB"});
  }
  auto made = run_millrace(words);
  BOOST_TEST_REQUIRE(made.code == 0, made.err);
  BOOST_TEST(json::parse(made.out).at("medium") == "dax");
  return words[2];
}

void check_at_rest(const std::string& pool, const std::vector<std::uint64_t>& steps) {
  auto checked = run_millrace({"pool", "check", pool, "--json"});
  BOOST_TEST_REQUIRE(checked.code == 0, checked.out + checked.err);
  auto report = json::parse(checked.out);
  BOOST_TEST(report.at("pool").at("medium") == "dax");
  BOOST_TEST(report.at("versions") == steps.size());
  BOOST_TEST(report.at("unreachable_bytes") == 0);
  auto listed = run_millrace({"checkpoints", "ls", "--pool", pool, "--json"});
  BOOST_TEST_REQUIRE(listed.code == 0, listed.err);
  BOOST_TEST((json::parse(listed.out).at("checkpoints").at(0).at("complete_steps") == json(steps)));
}

} // namespace

BOOST_AUTO_TEST_SUITE(checkpoints_on_persistent_memory)

BOOST_AUTO_TEST_CASE(jobs_save_straight_into_it_and_survive_kills_of_trainer_and_service) {
  if (!has_kill_points())
    return;
  scratch dir;
  auto pool = make_pool();
  service s{dir, with_pool(pool)};
  auto first = run_program(trainer(s, mib, 3));
  BOOST_TEST_REQUIRE(first.code == 0, first.out + first.err);
  BOOST_TEST(says(first, "fresh\nsaved 1\n"), first.out);
  BOOST_TEST(says(first, "direct by shm"), first.out);

  // A restore of 4 slices, a step of 4 slices, and half of the next one.
  auto killed = run_program(trainer(s, mib, 9, "mover.slice:7"));
  BOOST_TEST(killed.code == 128 + SIGKILL);
  BOOST_TEST(says(killed, "resumed 3 same\n"), killed.out);
  BOOST_TEST(!says(killed, "saved 5\n"), killed.out);
  BOOST_TEST(eventually([&] { return checkpoints_of(s).at("registered") == 0; }));

  auto again = run_program(trainer(s, mib, 6, {}, "snapshot"));
  BOOST_TEST(again.code == 0, again.out + again.err);
  BOOST_TEST(says(again, " same\n"), again.out);
  s.kill();
  check_at_rest(pool, {5, 6});

  ::setenv("MILLRACE_KILL_POINT", "save.filled:2", 1);
  s.start();
  ::unsetenv("MILLRACE_KILL_POINT");
  auto cut_off = run_program(trainer(s, mib, 12));
  BOOST_TEST(cut_off.code == 3, cut_off.out);
  BOOST_TEST(says(cut_off, "resumed 6 same\nsaved 7\n"), cut_off.out);
  BOOST_TEST(s.process().wait() == 128 + SIGKILL);
  s.start();
  auto last = run_program(trainer(s, mib, 9));
  BOOST_TEST(last.code == 0, last.out + last.err);
  BOOST_TEST(says(last, "resumed 7 same\nsaved 8\n"), last.out);
  BOOST_TEST(s.stop() == 0);
  check_at_rest(pool, {8, 9});
}

BOOST_AUTO_TEST_SUITE_END()
