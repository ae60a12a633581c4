// A peer of a live verbs driver that makes its frames and queue pairs by hand.
// Used by verbs_hostile_test.cpp in the lab guest.
#pragma once

#include "two_drivers.hpp"

#include <millrace/tests/support/fake_channel.hpp>
#include <millrace/transport/verbs/queue_pair.hpp>
#include <millrace/transport/verbs/registered_memory.hpp>

#include <atomic>
#include <mutex>
#include <vector>

namespace millrace::testing {

namespace vb = millrace::transport::verbs;

/// Keeps what the driver sends, and tells the driver of a close as a loop would.
class liar_channel : public fake_channel {
public:
  liar_channel(std::shared_ptr<net::io_loop> loop, std::shared_ptr<transport::peer_driver> d)
    : fake_channel(random_id<peer_id>(), "liar"), loop_(std::move(loop)), driver_(std::move(d)) {}
  bool is_open() const noexcept override { return open_; }
  status send(net::frame_kind, std::uint64_t, std::span<const std::byte> body, std::span<const int>)
    override {
    std::lock_guard guard{mutex_};
    if (auto fails = std::exchange(next_fails_, {}); !fails.ok())
      return fails;
    said_.emplace_back(body.begin(), body.end());
    return {};
  }
  /// The driver's next message does not go out.
  void fail_next(status why) {
    std::lock_guard guard{mutex_};
    next_fails_ = std::move(why);
  }
  void close(status why, std::uint32_t) override {
    if (!open_.exchange(false))
      return;
    loop_->post([self = shared_from_this(), this, why = std::move(why)] {
      driver_->peer_closed(*this, why);
      ended_ = true;
    });
  }

  bool ended() const { return ended_; }
  void open() { driver_->peer_opened(shared_from_this()); }
  void deliver(std::span<const std::byte> body) {
    if (open_)
      driver_->on_message(*this, body, {});
  }
  template <class Message>
  void say(vb::message_kind kind, const Message& m) {
    byte_buffer body;
    wire_writer{body}(kind, m);
    deliver(body);
  }
  /// The driver's next message of a kind; nothing within a minute fails the test.
  template <class Message>
  Message hear(vb::message_kind wanted) {
    Message out;
    BOOST_TEST_REQUIRE(eventually([&] { return take(wanted, out); }));
    return out;
  }
  template <class Message>
  bool take(vb::message_kind wanted, Message& out) {
    std::lock_guard guard{mutex_};
    for (auto i = said_.begin(); i != said_.end(); ++i) {
      wire_reader reader{*i};
      std::string name;
      vb::message_kind kind{};
      if (!reader(name, kind) || kind != wanted)
        continue;
      BOOST_TEST_REQUIRE(reader(out));
      said_.erase(i);
      return true;
    }
    return false;
  }

private:
  const std::shared_ptr<net::io_loop> loop_;
  const std::shared_ptr<transport::peer_driver> driver_;
  std::atomic<bool> open_ = true, ended_ = false;
  std::mutex mutex_;
  status next_fails_;
  std::vector<byte_buffer> said_;
};

/// Two honest drivers, and a liar who is a peer of the owner's, `victim`.
struct liar_and_victim {
  two_drivers honest{[](transport::verbs_options& a, transport::verbs_options& b) {
    a.op_timeout_ms = b.op_timeout_ms = 8000; // longer than an attempt to connect
    b.backlog_bytes_max = 1u << 20;
  }};
  std::shared_ptr<transport::verbs_driver> victim = honest.theirs;
  std::shared_ptr<liar_channel> line;
  // The liar's own device.
  transport::verbs_state state;
  transport::verbs_options options;
  vb::device_list devices;
  std::vector<std::byte> buffer = std::vector<std::byte>(1u << 20, std::byte{0xee});
  std::shared_ptr<vb::registered_memory> registered;
  std::unique_ptr<vb::queue_pair> q;
  std::uint32_t generation = 0;
  std::uint64_t posted = 0, asked = 0;

  liar_and_victim() {
    options.devices = {honest.which.ours.front()};
    devices = vb::open_devices(options, state);
    BOOST_TEST_REQUIRE(devices.size() == 1u);
    registered = vb::registered_memory::add(devices, buffer.data(), buffer.size()).value();
    meet();
  }
  ~liar_and_victim() {
    leave();
    q.reset();
  }

  void meet() {
    line = std::make_shared<liar_channel>(honest.loop, victim);
    line->open();
  }
  void leave() {
    line->close({errc::peer_lost, "the liar leaves"}, 0);
    BOOST_TEST(eventually([&] { return line->ended() && rail_state().empty(); }));
  }

  vb::rail_info rail() const { return devices[0]->now().value().rail; }
  void greet(std::size_t rails = 1) {
    line->say(
      vb::message_kind::hello,
      vb::hello{vb::protocol_version, std::vector<vb::rail_info>(rails, rail())});
  }
  /// The state of the victim's first rail to the liar; empty if there is none.
  std::string rail_state() const {
    for (auto& r : victim->stats().rails)
      if (r.peer == "liar")
        return r.state;
    return "";
  }
  /// Connects as an honest peer would, in place of what there was.
  void connect() {
    ++generation;
    q = vb::queue_pair::open(devices[0], options).value();
    auto mine = q->offer();
    mine.generation = generation;
    line->say(vb::message_kind::connect, mine);
    vb::connect theirs;
    while (theirs.generation < generation)
      theirs = line->hear<vb::connect>(vb::message_kind::connect);
    BOOST_TEST_REQUIRE(theirs.generation == generation);
    BOOST_TEST_REQUIRE(q->join(theirs, options).ok());
    line->say(vb::message_kind::ready, vb::ready{0, generation});
    vb::ready up;
    while (up.generation < generation)
      up = line->hear<vb::ready>(vb::message_kind::ready);
  }
  void greet_and_connect() {
    greet();
    generation = line->hear<vb::connect>(vb::message_kind::connect).generation;
    connect();
  }

  vb::granted ask(std::uint64_t region, const region_key& key, transport::direction dir) {
    line->say(vb::message_kind::ask, vb::ask{++asked, region, key, static_cast<std::uint8_t>(dir)});
    auto answer = line->hear<vb::granted>(vb::message_kind::granted);
    BOOST_TEST(answer.number == asked);
    return answer;
  }
  vb::granted ask(const bulk_handle& h) {
    return ask(h.region, h.key, static_cast<transport::direction>(h.allows));
  }

  /// Moves bytes between the liar's buffer and an address of the victim's.
  ibv_wc_status move(
    transport::direction dir, std::uint64_t address, std::uint64_t length, std::uint32_t key) {
    vb::request r;
    r.length = length;
    r.local = {{0, buffer.data(), length, 0}};
    BOOST_TEST_REQUIRE(
      q->post(++posted, true, dir, r, address, key, {registered->local_key(0)}).ok());
    ibv_wc_status out = IBV_WC_GENERAL_ERR;
    BOOST_TEST_REQUIRE(eventually([&] {
      auto done = q->poll();
      if (!done.empty())
        out = done.front().status;
      return !done.empty();
    }));
    return out;
  }

  /// The others notice nothing.
  void others_go_on() { honest.read_and_check(100'000, ++salt_); }

private:
  std::uint64_t salt_ = 0;
};

} // namespace millrace::testing
