// Two verbs drivers in one process, on devices of their own, and what to do with the guest's links.
// Used by the tests in the lab guest; MILLRACE_TEST_VERBS=OURS/THEIRS names the devices.
#pragma once

#include <millrace/core/clock.hpp>
#include <millrace/core/codec.hpp>
#include <millrace/core/log.hpp>
#include <millrace/tests/support/exposed_matrix.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/scratch_directory.hpp>
#include <millrace/tests/support/verbs_devices.hpp>
#include <millrace/transport/verbs/verbs_driver.hpp>

#include <boost/test/unit_test.hpp>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>

namespace millrace::testing {

inline constexpr std::uint64_t lab_arena_bytes = 24u << 20;

template <class Condition>
bool eventually(Condition holds, int seconds = 60) {
  auto end = steady_clock::now() + std::chrono::seconds{seconds};
  while (!holds()) {
    if (steady_clock::now() >= end)
      return false;
    usleep(10'000);
  }
  return true;
}

/// Runs a command of the guest; its output.
inline std::string run(const std::string& command) {
  std::string out;
  auto* f = popen((command + " 2>&1").c_str(), "r");
  BOOST_REQUIRE(f);
  std::array<char, 4096> part{};
  for (std::size_t n = 0; (n = fread(part.data(), 1, part.size(), f)) > 0;)
    out.append(part.data(), n);
  BOOST_TEST(pclose(f) == 0, command << ": " << out);
  return out;
}

/// One letter a thread of this process with that name, "R" or "S", as proc(5) has them.
inline std::string states_of_threads(const std::string& name) {
  std::string out;
  for (auto& task : std::filesystem::directory_iterator{"/proc/self/task"}) {
    std::ifstream in{task.path() / "stat"};
    std::string text{std::istreambuf_iterator<char>{in}, {}};
    auto end = text.rfind(')');
    if (end != std::string::npos && text.find('(' + name + ')') != std::string::npos)
      out += text.at(end + 2);
  }
  return out;
}

inline void link_down(int interface) {
  run("ip link set roce" + std::to_string(interface) + " down");
}

/// The kernel drops routes of an interface that goes down.
inline void link_up(int interface) {
  auto name = "roce" + std::to_string(interface);
  auto address = "10.77.0." + std::to_string(interface + 1);
  auto table = " table " + std::to_string(100 + interface);
  run("ip link set " + name + " up");
  run("ip route replace local " + address + " dev " + name + table);
  run("ip route replace 10.77.0.0/24 dev " + name + " src " + address + table);
}

class driver_handler : public net::channel_handler {
public:
  explicit driver_handler(std::shared_ptr<transport::peer_driver> d) : driver_(std::move(d)) {}
  void on_open(const std::shared_ptr<net::channel>& c) override { driver_->peer_opened(c); }
  void on_frame(net::channel& c, net::frame f) override {
    wire_reader reader{f.body};
    std::string name;
    reader(name);
    driver_->on_message(c, reader.rest(), std::move(f.fds));
  }
  void on_close(net::channel& c, const status& why) override { driver_->peer_closed(c, why); }

private:
  std::shared_ptr<transport::peer_driver> driver_;
};

/// MILLRACE_TEST_VERBS_CONNECT=rdma_cm has queue pairs connected so.
inline transport::verbs_options with_devices(std::vector<std::string> devices) {
  transport::verbs_options o;
  o.devices = std::move(devices);
  if (auto* how = std::getenv("MILLRACE_TEST_VERBS_CONNECT"); how && std::string{how} == "rdma_cm")
    o.connect = transport::verbs_connect::rdma_cm;
  o.probe_interval_ms = 200;
  o.ack_timeout_ms = 100; // a guest on a busy machine answers late
  return o;
}

/// A submitter and an owner in one process, on devices of their own.
struct two_drivers {
  verbs_devices which = verbs_devices::from_environment();
  scratch_directory dir;
  std::shared_ptr<net::io_loop> loop = net::io_loop::start({}).value();
  std::shared_ptr<transport::mover_pool> movers = std::make_shared<transport::mover_pool>(2);
  std::shared_ptr<transport::arena> memory =
    transport::arena::create({.name = "lab", .size_bytes = lab_arena_bytes}).value();
  std::shared_ptr<transport::verbs_driver> ours, theirs;
  std::shared_ptr<net::listener> listening;
  std::shared_ptr<net::channel> line;

  two_drivers() : two_drivers([](transport::verbs_options&, transport::verbs_options&) {}) {}
  /// `change(ours, theirs)` has the last word on the options.
  template <class Change>
  explicit two_drivers(Change change) {
    if (auto* level = std::getenv("MILLRACE_TEST_LOG"))
      configure_log(level);
    auto one = with_devices(which.ours), other = with_devices(which.theirs);
    change(one, other);
    ours = transport::make_verbs_driver(loop, movers, {}, one);
    theirs = transport::make_verbs_driver(loop, movers, {}, other);
    for (auto& d : {ours, theirs})
      d->memory_made(memory);
    auto handler = std::make_shared<driver_handler>(theirs);
    net::listener_options where;
    where.address = "unix:" + dir.path() + "/s.sock";
    listening =
      net::listener::open(loop, where, {.local_name = "owner"}, [handler](const net::peer_info&) {
        return handler;
      }).value();
    connect();
  }
  ~two_drivers() {
    disconnect();
    listening = nullptr;
    loop->stop();
  }

  void connect() {
    promise<std::shared_ptr<net::channel>> opened;
    net::connect(
      loop, listening->address(), {.local_name = "submitter"},
      std::make_shared<driver_handler>(ours), [opened](auto c) { opened.set(c); });
    line = opened.get_future().get();
    BOOST_REQUIRE(eventually([&] { return up() == rails(); }));
  }
  void disconnect() {
    line->close({errc::cancelled, "the test ends it"});
    line = nullptr;
    BOOST_REQUIRE(eventually([&] { return rails() == 0 && theirs->stats().rails.empty(); }));
  }

  std::size_t rails() const {
    return line ? std::max<std::size_t>({1, which.ours.size(), which.theirs.size()})
                : ours->stats().rails.size();
  }
  std::size_t up() const {
    auto s = ours->stats();
    return static_cast<std::size_t>(
      std::count_if(s.rails.begin(), s.rails.end(), [](auto& r) { return r.state == "up"; }));
  }

  held_completion<transport::transfer_report> start_read(
    const bulk_handle& from, std::uint64_t length) {
    held_completion<transport::transfer_report> done;
    std::fill_n(memory->data(), length, std::byte{0});
    ours->submit(
      {.dir = transport::direction::read,
       .remote = from,
       .ops = {{.local = memory->data(), .length = length}},
       .hold = memory},
      done.callback());
    return done;
  }
  void read_and_check(std::uint64_t length, std::uint64_t salt) {
    exposed_matrix m{{1, length, 0}, access_mode::read, salt};
    auto done = start_read(m.handle(), length);
    auto moved = done.take();
    BOOST_TEST_REQUIRE(moved.has_value(), why(moved));
    auto expected = pattern(length, salt);
    BOOST_TEST(std::equal(expected.begin(), expected.end(), memory->data()));
  }
};

} // namespace millrace::testing
