// Tests what a service sends to the manager that started it, and what it makes of its environment.
#include <millrace/tests/support/notify_socket.hpp>
#include <millrace/tests/support/process.hpp>
#include <millrace/tools/service_manager.hpp>

#include <boost/test/unit_test.hpp>

#include <cstdlib>
#include <string>

using millrace::testing::notify_socket;
using millrace::testing::scratch;
using millrace::tools::service_manager;

namespace {

struct variable {
  variable(const char* name, const std::string& value) : name_(name) {
    ::setenv(name, value.c_str(), 1);
  }
  ~variable() { ::unsetenv(name_); }
  variable(const variable&) = delete;
  variable& operator=(const variable&) = delete;

private:
  const char* name_;
};

std::string refused() {
  auto found = service_manager::of_this_process();
  BOOST_REQUIRE(!found);
  BOOST_TEST((found.error().code() == millrace::errc::invalid_argument));
  return found.error().detail();
}

void expect_messages(const notify_socket& manager) {
  auto service = service_manager::of_this_process();
  BOOST_REQUIRE(service.has_value());
  service->starting("opening");
  service->ready("node n0");
  service->alive();
  service->stopping("signal\n15");
  BOOST_TEST(manager.next() == "STATUS=opening");
  BOOST_TEST(manager.next() == "READY=1\nSTATUS=node n0");
  BOOST_TEST(manager.next() == "WATCHDOG=1");
  BOOST_TEST(manager.next() == "STOPPING=1\nSTATUS=signal\\x0a15");
}

} // namespace

BOOST_AUTO_TEST_SUITE(service_managers)

BOOST_AUTO_TEST_CASE(a_manager_at_a_path_is_told_how_the_service_stands) {
  scratch dir;
  expect_messages(notify_socket{dir / "notify"});
}

BOOST_AUTO_TEST_CASE(a_manager_at_an_abstract_socket_is_told_the_same) {
  expect_messages(notify_socket{"@millrace-test-" + std::to_string(::getpid())});
}

BOOST_AUTO_TEST_CASE(without_a_manager_nothing_is_sent_and_nothing_fails) {
  auto service = service_manager::of_this_process();
  BOOST_REQUIRE(service.has_value());
  service->ready("node n0");
  service->alive();
  BOOST_TEST(service->watchdog_interval_ms() == 0u);
}

BOOST_AUTO_TEST_CASE(a_manager_that_is_gone_fails_nothing) {
  scratch dir;
  variable gone{"NOTIFY_SOCKET", dir / "gone"};
  auto service = service_manager::of_this_process();
  BOOST_REQUIRE(service.has_value());
  service->ready("node n0");
  service->alive();
}

BOOST_AUTO_TEST_CASE(a_full_queue_of_the_manager_does_not_hold_up_the_watchdog) {
  scratch dir;
  notify_socket manager{dir / "notify"};
  auto service = service_manager::of_this_process();
  BOOST_REQUIRE(service.has_value());
  // More than the kernel queues (net.unix.max_dgram_qlen); a call that waits takes seconds.
  for (int i = 0; i < 100'000; ++i)
    service->alive();
  BOOST_TEST(manager.next() == "WATCHDOG=1");
}

BOOST_AUTO_TEST_CASE(the_watchdog_is_fed_at_half_its_time) {
  scratch dir;
  notify_socket manager{dir / "notify"};
  auto interval = [] { return service_manager::of_this_process().value().watchdog_interval_ms(); };
  variable usec{"WATCHDOG_USEC", "60000000"};
  BOOST_TEST(interval() == 30'000u);
  {
    variable own{"WATCHDOG_PID", std::to_string(::getpid())};
    BOOST_TEST(interval() == 30'000u);
  }
  {
    variable of_another{"WATCHDOG_PID", std::to_string(::getpid() + 1)};
    BOOST_TEST(interval() == 0u);
  }
  ::setenv("WATCHDOG_USEC", "1", 1);
  BOOST_TEST(interval() == 1u);
  ::setenv("WATCHDOG_USEC", "18446744073709551615", 1);
  BOOST_TEST(interval() == 4'294'967'295u);
}

BOOST_AUTO_TEST_CASE(an_environment_that_makes_no_sense_is_refused_by_name) {
  for (auto name :
       {std::string{"notify"}, std::string{"@"}, std::string{"vsock:2:1"},
        "/" + std::string(107, 'x')}) {
    variable bad{"NOTIFY_SOCKET", name};
    BOOST_TEST(refused().starts_with("NOTIFY_SOCKET=" + name));
  }
  scratch dir;
  notify_socket manager{dir / "notify"};
  for (auto* text : {"soon", "0", "-1", "18446744073709551616"}) {
    variable bad{"WATCHDOG_USEC", text};
    BOOST_TEST(refused().starts_with("WATCHDOG_USEC="));
  }
}

BOOST_AUTO_TEST_SUITE_END()
