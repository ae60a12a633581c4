// Drivers that report a transfer more than once, seen through the fabric.
#include <millrace/core/log.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/transport/fabric.hpp>
#include <millrace/transport/once.hpp>

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <thread>
#include <vector>

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::net;
using namespace millrace::transport;

namespace {

// Keeps what it was given, as long as the test likes.
class keeping_driver : public driver {
public:
  std::vector<completion<transfer_report>> kept;

  std::string_view name() const noexcept override { return "keeping"; }
  driver_capabilities capabilities() const noexcept override { return {.same_process = true}; }
  bool reaches(const peer_id&) const noexcept override { return true; }
  void submit(transfer, completion<transfer_report> done) override {
    kept.push_back(std::move(done));
  }
};

} // namespace

BOOST_AUTO_TEST_SUITE(once_tests)

BOOST_AUTO_TEST_CASE(the_first_report_of_a_transfer_counts_and_later_ones_do_nothing) {
  configure_log("off");
  auto d = std::make_shared<keeping_driver>();
  auto f = fabric::with_drivers({}, {d});
  int calls = 0;
  f->submit({}, [&](const result<transfer_report>& r) {
    ++calls;
    BOOST_TEST((r.error().code() == errc::io_error));
  });
  auto copy = d->kept[0];
  d->kept[0](fail(errc::io_error, "first"));
  d->kept[0](transfer_report{});
  copy(transfer_report{});
  BOOST_TEST(calls == 1);
  BOOST_TEST_REQUIRE(f->paths().size() == 1u);
  BOOST_TEST(f->paths()[0].failures == 1u);
  BOOST_TEST(f->paths()[0].transfers == 0u);
  configure_log("warn");
}

BOOST_AUTO_TEST_CASE(a_copy_that_a_driver_keeps_holds_nothing_of_the_caller) {
  auto token = std::make_shared<int>(0);
  std::weak_ptr<int> held = token;
  auto done = once<int>([token = std::move(token)](const result<int>&) {}, [] {});
  BOOST_TEST(!held.expired());
  auto kept = done;
  done(1);
  BOOST_TEST(held.expired());
}

BOOST_AUTO_TEST_CASE(of_reports_from_several_threads_one_gets_through) {
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> first = 0, again = 0;
    auto done = once<int>([&](const result<int>&) { ++first; }, [&] { ++again; });
    {
      std::vector<std::jthread> threads;
      for (int i = 0; i < 3; ++i)
        threads.emplace_back([done] { done(1); });
    }
    BOOST_TEST(first == 1);
    BOOST_TEST(again == 2);
  }
}

BOOST_AUTO_TEST_SUITE_END()
