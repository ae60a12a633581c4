// Tests that a service tells the manager that started it when it serves, lives and stops.
#include <millrace/tests/support/notify_socket.hpp>
#include <millrace/tests/support/service.hpp>

#include <boost/test/unit_test.hpp>
#include <signal.h>

#include <cstdlib>

using namespace millrace::testing;

namespace {

struct watchdog {
  explicit watchdog(const char* usec) { ::setenv("WATCHDOG_USEC", usec, 1); }
  ~watchdog() { ::unsetenv("WATCHDOG_USEC"); }
};

void expect_life(const notify_socket& manager) {
  watchdog watched{"20000"};
  scratch dir;
  child_process served{{MILLRACE_PROGRAM, "serve", "-c", write_config(dir, {})}};
  BOOST_TEST(manager.next() == "STATUS=opening the providers of node n0");
  auto ready = manager.await("READY=1");
  BOOST_TEST(ready.starts_with("READY=1\nSTATUS=node n0 on unix:"), ready);
  // Whoever is told that the service is ready is served.
  auto address = ready.substr(ready.find("unix:"));
  BOOST_TEST(run_millrace({"status", "--address", address}).code == 0);
  for (int i = 0; i < 3; ++i)
    BOOST_TEST(manager.await("WATCHDOG=1") == "WATCHDOG=1");
  served.signal(SIGTERM);
  BOOST_TEST(manager.await("STOPPING=1") == "STOPPING=1\nSTATUS=node n0 stops after signal 15");
  BOOST_TEST(served.wait() == 0);
}

} // namespace

BOOST_AUTO_TEST_SUITE(notified_managers)

BOOST_AUTO_TEST_CASE(a_manager_at_a_path_sees_the_service_ready_alive_and_stopping) {
  scratch dir;
  expect_life(notify_socket{dir / "notify"});
}

BOOST_AUTO_TEST_CASE(a_manager_at_an_abstract_socket_sees_the_same) {
  expect_life(notify_socket{"@millrace-notify-" + std::to_string(::getpid())});
}

BOOST_AUTO_TEST_CASE(the_manager_is_told_which_provider_is_down) {
  scratch dir;
  notify_socket manager{dir / "notify"};
  auto in_the_way = dir.write("file", "in the way");
  child_process served{
    {MILLRACE_PROGRAM, "serve", "-c",
     write_config(
       dir,
       {.providers = "[{ name: kept, bucket: rocksdb, capacity: 64MiB, window: 1MiB, path: " +
          in_the_way + " }]"})}};
  auto ready = manager.await("READY=1");
  BOOST_TEST(ready.find("; provider kept is down: ") != ready.npos, ready);
}

BOOST_AUTO_TEST_CASE(a_service_that_does_not_start_never_says_that_it_is_ready) {
  scratch dir;
  notify_socket manager{dir / "notify"};
  auto in_the_way = dir.write("file", "in the way");
  auto config = write_config(
    dir,
    {.providers =
       "[{ name: kept, bucket: rocksdb, capacity: 64MiB, window: 1MiB, path: " + in_the_way + " }]",
     .node_more = "  require: all\n"});
  BOOST_TEST(run_millrace({"serve", "-c", config}).code == 1);
  ::setenv("WATCHDOG_USEC", "never", 1);
  BOOST_TEST(run_millrace({"serve", "-c", config}).code == 2);
  ::unsetenv("WATCHDOG_USEC");
  BOOST_TEST(manager.next().starts_with("STATUS=opening"));
  service others{dir}; // tells the same manager
  BOOST_TEST(manager.next().starts_with("STATUS=opening"));
  BOOST_TEST(manager.next().starts_with("READY=1"));
}

BOOST_AUTO_TEST_SUITE_END()
