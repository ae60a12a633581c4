// Kills training jobs and the service, each in a process of its own, in the middle of a pull.
// Checkpoints are found whole afterwards.
#include <millrace/tests/support/kill_points.hpp>
#include <millrace/tests/support/training.hpp>

#include <signal.h>

using namespace millrace::testing;

namespace {

// Has a place in memory, where slots are filled in place, and one on the disk.
struct pool_directory {
  std::string in_memory = "/dev/shm/millrace-test-" + std::to_string(getpid());
  scratch on_disk;

  pool_directory() { std::filesystem::create_directories(in_memory); }
  ~pool_directory() { std::filesystem::remove_all(in_memory); }

  std::vector<std::string> paths() const { return {in_memory + "/p.pool", on_disk / "p.pool"}; }
};

} // namespace

BOOST_AUTO_TEST_SUITE(checkpoints)

BOOST_AUTO_TEST_CASE(a_job_saves_every_step_and_the_next_one_resumes_from_the_last) {
  pool_directory pools;
  for (auto& path : pools.paths())
    for (std::string mode : {"direct", "snapshot"}) {
      BOOST_TEST_CONTEXT(path << " " << mode) {
        scratch dir;
        service s{dir, with_pool(path + mode)};
        auto first = run_program(trainer(s, 8, 5, {}, mode));
        BOOST_TEST(first.code == 0, first.out + first.err);
        BOOST_TEST(says(first, "fresh\nsaved 1\n"));
        BOOST_TEST_MESSAGE(first.out);
        auto second = run_program(trainer(s, 8, 7, {}, mode));
        BOOST_TEST(says(second, "resumed 5 same\nsaved 6\n"), second.out);
        if (path.starts_with("/dev/shm") && mode == "direct")
          BOOST_TEST(says(second, "direct by shm"), second.out);
        BOOST_TEST(checkpoints_of(s).at("saves") == 7);
      }
    }
}

BOOST_AUTO_TEST_CASE(a_trainer_killed_in_mid_pull_leaves_its_last_version_and_no_registration) {
  if (!has_kill_points())
    return;
  pool_directory pools;
  for (auto& path : pools.paths()) {
    BOOST_TEST_CONTEXT(path) {
      scratch dir;
      service s{dir, with_pool(path)};
      // Four steps of 8 slices, and half of the fifth.
      auto killed = run_program(trainer(s, 8, 10, "mover.slice:37"));
      BOOST_TEST(killed.code == 128 + SIGKILL);
      BOOST_TEST(says(killed, "saved 4\n"), killed.out);
      BOOST_TEST(!says(killed, "saved 5\n"));
      BOOST_TEST(eventually([&] { return checkpoints_of(s).at("registered") == 0; }));
      BOOST_TEST(checkpoints_of(s).at("saves_in_flight") == 0);
      BOOST_TEST(checkpoints_of(s).at("saves_failed") == 1);
      auto again = run_program(trainer(s, 8, 10));
      BOOST_TEST(again.code == 0, again.out + again.err);
      BOOST_TEST(says(again, "resumed 4 same\nsaved 5\n"), again.out);
    }
  }
}

BOOST_AUTO_TEST_CASE(
  a_service_killed_at_any_point_of_a_save_has_the_version_before_it_or_the_new_one) {
  if (!has_kill_points())
    return;
  for (std::string point : {"save.begun:3", "save.filled:3", "save.published:3"}) {
    BOOST_TEST_CONTEXT(point) {
      pool_directory pools;
      for (auto& path : pools.paths()) {
        scratch dir;
        ::setenv("MILLRACE_KILL_POINT", point.c_str(), 1);
        service s{dir, with_pool(path)};
        ::unsetenv("MILLRACE_KILL_POINT");
        auto cut_off = run_program(trainer(s, 8, 10));
        BOOST_TEST(cut_off.code == 3, cut_off.out);
        BOOST_TEST(says(cut_off, "saved 2\n"), cut_off.out);
        BOOST_TEST(s.process().wait() == 128 + SIGKILL);
        s.start();
        auto again = run_program(trainer(s, 8, 4));
        BOOST_TEST(again.code == 0, again.out + again.err);
        auto expected = point.starts_with("save.published") ? "resumed 3 same" : "resumed 2 same";
        BOOST_TEST(says(again, expected), again.out);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_service_stopped_in_order_keeps_its_versions) {
  pool_directory pools;
  for (auto& path : pools.paths()) {
    scratch dir;
    service s{dir, with_pool(path)};
    BOOST_TEST(run_program(trainer(s, 8, 3)).code == 0);
    BOOST_TEST(s.stop() == 0);
    s.start();
    BOOST_TEST(says(run_program(trainer(s, 8, 4)), "resumed 3 same"));
  }
}

BOOST_AUTO_TEST_SUITE_END()
