// Tests which driver a fabric takes, and what it does when that one fails.
#include <millrace/tests/support/fake_channel.hpp>
#include <millrace/tests/support/kept_log.hpp>
#include <millrace/transport/fabric.hpp>
#include <millrace/transport/path_table.hpp>
#include <millrace/transport/verbs/verbs_options.hpp>

#include <boost/test/unit_test.hpp>

#include <deque>
#include <set>

using namespace millrace;
using namespace millrace::net;
using namespace millrace::transport;

namespace {

// Reaches whom the test says; transfers wait until the test ends them.
class fake_driver : public driver {
public:
  explicit fake_driver(std::string name) : name_(std::move(name)) {}

  std::string_view name() const noexcept override { return name_; }
  driver_capabilities capabilities() const noexcept override { return able; }
  bool reaches(const peer_id&) const noexcept override { return reaching; }
  void submit(transfer t, completion<transfer_report> done) override {
    waiting.push_back({std::move(t), std::move(done)});
  }
  void memory_made(const std::shared_ptr<arena>& a) override { made.push_back(a); }
  void invalidate(const std::byte* data, std::uint64_t size_bytes) override {
    invalidated.emplace_back(data, size_bytes);
  }
  std::optional<driver_report> report() const override { return told; }
  std::vector<std::string> devices_in_use() const override { return devices; }

  void succeed(std::string_view carrier = {}) { end(transfer_report{{}, name_, false, carrier}); }
  void fail_with(errc code) { end(fail(code, name_ + " does not work")); }

  struct held {
    transfer what;
    completion<transfer_report> done;
  };
  bool reaching = true;
  std::optional<driver_report> told;
  std::vector<std::string> devices;
  driver_capabilities able;
  std::deque<held> waiting;
  std::vector<std::weak_ptr<arena>> made;
  std::vector<std::pair<const std::byte*, std::uint64_t>> invalidated;

private:
  void end(result<transfer_report> how) {
    BOOST_TEST_REQUIRE(!waiting.empty(), name_ << " has nothing to end");
    auto h = std::move(waiting.front());
    waiting.pop_front();
    h.what = {};
    h.done(std::move(how));
  }

  std::string name_;
};

struct fixture {
  std::shared_ptr<fake_driver> fast = std::make_shared<fake_driver>("fast");
  std::shared_ptr<fake_driver> slow = std::make_shared<fake_driver>("slow");
  std::shared_ptr<testing::fake_channel> peer =
    std::make_shared<testing::fake_channel>(random_id<peer_id>(), "n7");
  std::shared_ptr<fabric> f;
  std::vector<std::byte> memory = std::vector<std::byte>(100);
  std::vector<result<transfer_report>> ended;

  explicit fixture(std::uint32_t retry_after_ms = 3'600'000) {
    fabric_options options;
    options.movers = 1;
    options.retry_after_ms = retry_after_ms;
    f = fabric::with_drivers(options, {fast, slow});
    f->peer_opened(peer);
  }
  // What is still with a driver keeps the fabric, which keeps its drivers.
  ~fixture() {
    fast->waiting.clear();
    slow->waiting.clear();
  }

  void submit(std::shared_ptr<void> hold = nullptr, bool on_device = false) {
    transfer t;
    t.remote.on_device = on_device;
    t.remote.owner = peer->peer().id;
    t.ops = {{.remote_offset = 3, .local = memory.data(), .length = 100}};
    t.hold = std::move(hold);
    f->submit(std::move(t), [this](result<transfer_report> r) { ended.push_back(std::move(r)); });
  }

  path_stats path(const std::string& driver) const {
    for (auto& p : f->paths())
      if (p.driver == driver)
        return p;
    BOOST_TEST_REQUIRE(false, "no path " << driver);
    return {};
  }
};

} // namespace

BOOST_AUTO_TEST_SUITE(fabric_choice)

BOOST_AUTO_TEST_CASE(devices_in_use_are_those_of_all_drivers) {
  fixture t;
  BOOST_TEST(t.f->devices_in_use().empty());
  t.slow->devices = {"mlx5_1", "mlx5_2"};
  t.fast->devices = {"rxe0"};
  BOOST_TEST((t.f->devices_in_use() == std::vector<std::string>{"rxe0", "mlx5_1", "mlx5_2"}));
}

BOOST_AUTO_TEST_CASE(the_first_driver_that_reaches_the_peer_is_taken) {
  fixture t;
  t.submit();
  t.fast->succeed();
  t.fast->reaching = false;
  t.submit();
  t.slow->succeed();
  BOOST_TEST_REQUIRE(t.ended.size() == 2u);
  BOOST_TEST(t.ended[0]->driver == "fast");
  BOOST_TEST(t.ended[1]->driver == "slow");
  t.slow->reaching = false;
  t.submit();
  BOOST_TEST((t.ended[2].error().code() == errc::peer_lost));
}

BOOST_AUTO_TEST_CASE(every_driver_is_told_of_memory_that_comes_and_keeps_none) {
  fixture t;
  {
    auto staging = t.f->make_memory({.name = "told", .size_bytes = 1u << 20});
    BOOST_TEST_REQUIRE(staging.has_value());
    for (auto& d : {t.fast, t.slow})
      BOOST_TEST((d->made.size() == 1 && !d->made[0].expired()));
  }
  for (auto& d : {t.fast, t.slow})
    BOOST_TEST(d->made[0].expired());
}

BOOST_AUTO_TEST_CASE(where_no_driver_reaches_the_peer_all_are_named_with_their_reasons) {
  fixture t;
  t.submit();
  t.fast->fail_with(errc::io_error);
  t.slow->succeed();
  t.fast->reaching = t.slow->reaching = false;
  t.submit();
  auto detail = t.ended.at(1).error().detail();
  BOOST_TEST(
    detail.starts_with(
      "no driver reaches n7: fast (failed: io_error: fast does not work), slow (no way there); "),
    detail);
  BOOST_TEST(detail.find("transport.prefer") != std::string::npos);
  t.submit(nullptr, true);
  BOOST_TEST(
    t.ended.at(2).error().detail().find("slow (not for memory of devices)") != std::string::npos);
  t.f->peer_closed(*t.peer, {errc::peer_lost, "gone"});
  t.submit();
  BOOST_TEST(t.ended.at(3).error().detail().find("is not connected") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(processes_of_one_name_are_told_apart_by_their_hosts) {
  fixture t;
  for (auto address : {"10.0.0.1:5", "10.0.0.2:5"}) {
    auto c = std::make_shared<testing::fake_channel>(random_id<peer_id>(), "client:7");
    c->set_address(address);
    t.f->peer_opened(c);
  }
  std::set<std::string> names;
  for (auto& p : t.f->paths())
    names.insert(p.peer);
  BOOST_TEST((names == std::set<std::string>{"client:7@10.0.0.1", "client:7@10.0.0.2", "n7"}));
}

BOOST_AUTO_TEST_CASE(every_driver_is_told_of_memory_that_goes) {
  fixture t;
  t.f->invalidate(t.memory.data() + 1, 98);
  using told = decltype(t.fast->invalidated);
  for (auto& d : {t.fast, t.slow})
    BOOST_TEST((d->invalidated == told{{t.memory.data() + 1, 98}}));
}

BOOST_AUTO_TEST_CASE(drivers_report_what_they_have_to_say) {
  fixture t;
  BOOST_TEST(t.f->reports().empty());
  t.slow->told = driver_report{"slowness", {{"naps", 3}}, {}};
  BOOST_TEST((t.f->reports() == std::vector<driver_report>{*t.slow->told}));
}

BOOST_AUTO_TEST_CASE(a_failure_is_taken_on_whole_by_the_next_driver) {
  for (auto code : {errc::unsupported, errc::unavailable, errc::io_error, errc::peer_lost}) {
    fixture t;
    t.submit();
    t.fast->fail_with(code);
    BOOST_TEST(t.ended.empty());
    BOOST_TEST_REQUIRE(t.slow->waiting.size() == 1u);
    auto& again = t.slow->waiting.front().what;
    BOOST_TEST((again.remote.owner == t.peer->peer().id));
    BOOST_TEST_REQUIRE(again.ops.size() == 1u);
    BOOST_TEST(again.ops[0].remote_offset == 3u);
    BOOST_TEST((again.ops[0].local == t.memory.data() && again.ops[0].length == 100u));
    t.slow->succeed();
    BOOST_TEST_REQUIRE(t.ended.size() == 1u);
    BOOST_TEST(t.ended[0]->driver == "slow");
  }
}

BOOST_AUTO_TEST_CASE(what_another_driver_would_say_as_well_is_final) {
  for (auto code :
       {errc::permission_denied, errc::invalid_argument, errc::busy, errc::deadline_exceeded,
        errc::corrupt_data}) {
    fixture t;
    t.submit();
    t.fast->fail_with(code);
    BOOST_TEST(t.slow->waiting.empty());
    BOOST_TEST_REQUIRE(t.ended.size() == 1u);
    BOOST_TEST((t.ended[0].error().code() == code));
    BOOST_TEST(t.path("fast").failures == 1u);
    BOOST_TEST(t.path("fast").fallbacks == 0u);
    BOOST_TEST(t.path("fast").chosen);
  }
}

BOOST_AUTO_TEST_CASE(the_last_drivers_failure_is_the_transfers) {
  fixture t;
  t.submit();
  t.fast->fail_with(errc::io_error);
  t.slow->fail_with(errc::unavailable);
  BOOST_TEST_REQUIRE(t.ended.size() == 1u);
  BOOST_TEST((t.ended[0].error().code() == errc::unavailable));
  BOOST_TEST(t.fast->waiting.empty());
}

BOOST_AUTO_TEST_CASE(a_driver_that_broke_is_left_out_for_a_while) {
  fixture t;
  t.submit();
  t.fast->fail_with(errc::io_error);
  t.slow->succeed();
  BOOST_TEST(!t.path("fast").chosen);
  BOOST_TEST(t.path("slow").chosen);
  t.submit();
  BOOST_TEST(t.fast->waiting.empty());
  t.slow->succeed();
  // It is still better than nothing.
  t.slow->reaching = false;
  t.submit();
  t.fast->succeed();
  BOOST_TEST(t.ended.at(2)->driver == "fast");
  // And has shown that it works.
  t.slow->reaching = true;
  t.submit();
  BOOST_TEST(t.fast->waiting.size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_driver_that_broke_is_tried_again_afterwards) {
  fixture t{0};
  t.submit();
  t.fast->fail_with(errc::io_error);
  t.slow->succeed();
  t.submit();
  BOOST_TEST_REQUIRE(t.fast->waiting.size() == 1u);
  t.fast->fail_with(errc::io_error);
  t.slow->succeed();
  t.submit();
  t.fast->succeed();
  BOOST_TEST(t.ended.at(2)->driver == "fast");
  BOOST_TEST(t.path("fast").fallbacks == 2u);
  BOOST_TEST(t.path("fast").transfers == 1u);
}

BOOST_AUTO_TEST_CASE(a_driver_that_cannot_do_one_transfer_does_the_next) {
  fixture t;
  t.submit();
  t.fast->fail_with(errc::unsupported);
  t.slow->succeed();
  BOOST_TEST(t.path("fast").chosen);
  t.submit();
  BOOST_TEST(t.fast->waiting.size() == 1u);
}

BOOST_AUTO_TEST_CASE(fifty_failures_are_one_line_until_the_driver_works_again) {
  for (auto code : {errc::io_error, errc::unsupported}) {
    testing::kept_log lines;
    configure_log("info");
    // Tried again each time.
    fixture t{0};
    auto fail_often = [&] {
      for (int i = 0; i < 50; ++i) {
        t.submit();
        t.fast->fail_with(code);
        t.slow->succeed();
      }
    };
    fail_often();
    BOOST_TEST(lines.count("path changed peer=n7 from=fast to=slow why=\"fast does not") == 1u);
    BOOST_TEST(lines.count("") == 1u, lines.text());
    t.submit();
    t.fast->succeed();
    fail_often();
    configure_log("warn");
    // An unsupported transfer says nothing of the next one.
    auto broke = code == errc::io_error;
    BOOST_TEST(lines.count("path works again peer=n7 driver=fast") == (broke ? 1u : 0u));
    BOOST_TEST(lines.count("path changed") == (broke ? 2u : 1u));
  }
}

BOOST_AUTO_TEST_CASE(when_the_peer_is_gone_nothing_is_tried_again) {
  fixture t;
  t.submit();
  t.f->peer_closed(*t.peer, {errc::peer_lost, "gone"});
  t.fast->fail_with(errc::peer_lost);
  BOOST_TEST(t.slow->waiting.empty());
  BOOST_TEST_REQUIRE(t.ended.size() == 1u);
  BOOST_TEST((t.ended[0].error().code() == errc::peer_lost));
  BOOST_TEST_REQUIRE(t.f->paths().size() == 1u);
  BOOST_TEST(t.f->paths()[0].peer == "peers that are gone");
  BOOST_TEST(t.f->paths()[0].failures == 1u);
}

BOOST_AUTO_TEST_CASE(a_peer_with_two_channels_is_there_until_both_are_closed) {
  fixture t;
  t.f->peer_opened(t.peer);
  t.f->peer_closed(*t.peer, {errc::peer_lost, "gone"});
  t.submit();
  t.fast->fail_with(errc::peer_lost);
  t.slow->succeed();
  BOOST_TEST(t.ended.at(0)->driver == "slow");
  t.f->peer_closed(*t.peer, {errc::peer_lost, "gone"});
  BOOST_TEST(t.f->paths().empty());
}

BOOST_AUTO_TEST_CASE(the_memory_is_held_as_long_as_a_driver_may_need_it) {
  fixture t;
  auto hold = std::make_shared<int>(1);
  t.submit(hold);
  BOOST_TEST(hold.use_count() > 1);
  t.fast->fail_with(errc::io_error);
  BOOST_TEST(hold.use_count() > 1);
  t.slow->succeed();
  BOOST_TEST(hold.use_count() == 1);
}

BOOST_AUTO_TEST_CASE(paths_tell_what_is_used_and_why) {
  fixture t;
  auto unused = t.f->paths();
  BOOST_TEST_REQUIRE(unused.size() == 1u);
  BOOST_TEST(unused[0].peer == "n7");
  BOOST_TEST(unused[0].driver == "fast");
  BOOST_TEST((unused[0].chosen && unused[0].transfers == 0u));
  t.submit();
  t.fast->fail_with(errc::io_error);
  t.slow->succeed();
  auto fast = t.path("fast");
  BOOST_TEST((fast.failures == 1u && fast.fallbacks == 1u && fast.transfers == 0u));
  BOOST_TEST((fast.last_reason.find("fast does not work") != std::string::npos));
  auto slow = t.path("slow");
  BOOST_TEST((slow.transfers == 1u && slow.bytes == 100u && slow.failures == 0u));
  // All of them within the window, whose first second is not over.
  BOOST_TEST((slow.rate_bytes_per_s > 0u && slow.rate_bytes_per_s <= 100u));
}

BOOST_AUTO_TEST_CASE(memory_of_devices_goes_to_who_can_have_it_and_no_other_memory_to_who_cannot) {
  fixture t;
  t.slow->able = {.host_memory = false, .device_memory = true};
  t.submit(nullptr, true);
  BOOST_TEST(t.fast->waiting.empty());
  t.slow->succeed("fast");
  BOOST_TEST(t.ended.at(0)->carrier == "fast");
  BOOST_TEST(t.path("slow").carrier == "fast");
  t.submit();
  t.fast->fail_with(errc::io_error);
  BOOST_TEST(t.slow->waiting.empty());
  BOOST_TEST((t.ended.at(1).error().code() == errc::io_error));
  // A driver for both memories may refuse this transfer.
  t.fast->able.device_memory = true;
  t.submit(nullptr, true);
  t.fast->fail_with(errc::unsupported);
  t.slow->succeed("fast");
  BOOST_TEST(t.ended.at(2)->driver == "slow");
}

BOOST_AUTO_TEST_CASE(a_rate_is_of_the_last_seconds) {
  using std::chrono::seconds;
  rate_meter m;
  time_point start{seconds{1000}};
  BOOST_TEST(m.bytes_per_s(start) == 0u);
  m.add(600, start);
  BOOST_TEST(m.bytes_per_s(start) == 600u);
  BOOST_TEST(m.bytes_per_s(start + seconds{1}) == 300u);
  m.add(600, start + seconds{5});
  BOOST_TEST(m.bytes_per_s(start + seconds{5}) == 200u);
  BOOST_TEST(m.bytes_per_s(start + seconds{9}) == 120u);
  BOOST_TEST(m.bytes_per_s(start + seconds{10}) == 60u);
  BOOST_TEST(m.bytes_per_s(start + seconds{15}) == 0u);
  m.add(50, start + seconds{10'000});
  BOOST_TEST(m.bytes_per_s(start + seconds{10'000}) == 5u);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(fabric_drivers)

BOOST_AUTO_TEST_CASE(drivers_that_a_machine_lacks_are_left_out_and_unknown_ones_refused) {
  auto loop = io_loop::start({}).value();
  fabric_options options;
  options.movers = 1;
  BOOST_TEST(fabric::create(options, loop).has_value());
  options.prefer = {"local", "carrier_pigeon"};
  auto refused = fabric::create(options, loop);
  BOOST_TEST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code() == errc::invalid_argument));
  loop->stop();
}

BOOST_AUTO_TEST_CASE(a_driver_left_out_is_worth_a_warning_only_if_the_configuration_asked_for_it) {
  for (bool asked : {false, true}) {
    millrace::testing::kept_log lines;
    auto loop = io_loop::start({}).value();
    fabric_options options;
    options.movers = 1;
    options.prefer = {"local", "verbs"};
    options.prefer_is_explicit = asked;
    options.drivers.edit<verbs_options>().devices = {"no_such_device"};
    BOOST_TEST(fabric::create(options, loop).has_value());
    loop->stop();
    BOOST_TEST(lines.count("warning transport left out driver=verbs why=") == (asked ? 1u : 0u));
    BOOST_TEST(lines.count("") == (asked ? 1u : 0u), lines.text());
  }
}

BOOST_AUTO_TEST_CASE(without_any_driver_there_is_no_fabric) {
  millrace::testing::kept_log lines;
  auto loop = io_loop::start({}).value();
  fabric_options options;
  options.movers = 1;
  options.prefer = {"verbs"};
  options.prefer_is_explicit = true;
  options.drivers.edit<verbs_options>().devices = {"no_such_device"};
  auto refused = fabric::create(options, loop);
  BOOST_TEST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code() == errc::unavailable));
  BOOST_TEST(lines.count("driver=verbs") == 1u);
  loop->stop();
}

BOOST_AUTO_TEST_SUITE_END()
