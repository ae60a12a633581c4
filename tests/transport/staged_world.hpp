// An owner of device memory and one peer, whose messages pass through functions of the test.
// Used by the tests of the staged driver.
#pragma once

#include <millrace/core/assert.hpp>
#include <millrace/tests/support/fake_channel.hpp>
#include <millrace/tests/support/fake_device.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/pattern.hpp>
#include <millrace/tests/support/process.hpp>
#include <millrace/transport/fabric.hpp>
#include <millrace/transport/local/local_driver.hpp>
#include <millrace/transport/staged/asking_side.hpp>
#include <millrace/transport/staged/lending_side.hpp>

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace millrace::transport::staged::testing {

using millrace::testing::eventually;
using millrace::testing::fake_channel;
using millrace::testing::fake_device;
using millrace::testing::held_completion;
using millrace::testing::pattern;

inline constexpr std::uint64_t chunk_bytes = 512u << 10;

// Hands what is sent to a function, as if the peer had received it.
class wire : public fake_channel {
public:
  using receiver = std::function<status(message_kind, wire_reader&)>;

  // The peer is mostly this process, so that the local driver can be the carrier.
  explicit wire(const peer_id& id = this_peer()) : fake_channel(id, "n7") {}
  status send(net::frame_kind, std::uint64_t, std::span<const std::byte> body, std::span<const int>)
    override {
    if (full)
      return {errc::busy, "the send queue is full"};
    wire_reader reader{body};
    std::string driver;
    message_kind kind{};
    reader(driver);
    reader(kind);
    auto bad = deliver(kind, reader);
    MILLRACE_ASSERT(bad.ok());
    return {};
  }

  void close(status, std::uint32_t) override { closed = true; }

  receiver deliver;
  std::atomic<bool> full = false; // takes nothing
  std::atomic<bool> closed = false;
};

template <class Message>
Message read(wire_reader& reader) {
  Message m;
  reader(m);
  return m;
}

inline staged_options small_options() {
  return {
    .size_bytes = 6 * chunk_bytes,
    .chunk_bytes = chunk_bytes,
    .chunks_max = 3,
    .transfers_max = 1000,
    .hold_timeout_ms = 3'600'000};
}

// An owner of a device, and one peer.
struct world {
  staged_options options;
  fake_device device{256u << 20};
  std::shared_ptr<mover_pool> movers = std::make_shared<mover_pool>(2);
  std::shared_ptr<driver> local = make_local_driver({.movers = movers});
  std::shared_ptr<chunk_pool> pool;
  std::shared_ptr<wire> to_owner = std::make_shared<wire>();
  std::shared_ptr<wire> to_peer = std::make_shared<wire>();
  std::shared_ptr<asking_side> asking;
  std::shared_ptr<lending_side> lending;
  // What the fabric would do; a test may put something else here.
  asking_side::carrier carry = [this](transfer t, completion<transfer_report> done) {
    local->submit(std::move(t), std::move(done));
  };
  std::size_t regions_before = exposed_regions();

  explicit world(const staged_options& o = small_options())
    : options(o), pool(std::make_shared<chunk_pool>(o, movers)) {
    asking = std::make_shared<asking_side>(
      to_owner,
      [this](transfer t, completion<transfer_report> done) {
        carry(std::move(t), std::move(done));
      },
      std::chrono::milliseconds{o.hold_timeout_ms}, o.transfers_max);
    lending = std::make_shared<lending_side>(to_peer, pool, o);
    to_owner->deliver = [to = std::weak_ptr{lending}](message_kind kind, wire_reader& r) {
      auto l = to.lock();
      return l ? deliver(*l, kind, r) : status{};
    };
    to_peer->deliver = [to = std::weak_ptr{asking}](message_kind kind, wire_reader& r) {
      auto a = to.lock();
      if (a && kind == message_kind::staged)
        a->on_staged(read<staged>(r));
      else if (a)
        a->on_committed(read<committed>(r));
      return status{};
    };
    BOOST_TEST(asking->on_hello({protocol_version, o.chunk_bytes, o.chunks_max}).ok());
  }
  ~world() {
    device.on_copy(nullptr);
    lending->close();
    asking->close({errc::peer_lost, "the test ends"});
    BOOST_TEST(eventually([this] { return all_is_back(); }));
  }

  static status deliver(lending_side& to, message_kind kind, wire_reader& r) {
    if (kind == message_kind::stage)
      return to.on_stage(read<stage>(r));
    if (kind == message_kind::commit)
      return to.on_commit(read<commit>(r));
    to.on_release(read<release>(r));
    return {};
  }

  bool all_is_back() const {
    auto now = pool->now();
    return now.free == now.chunks && now.waiting == 0 && lending->requests() == 0 &&
      asking->chunks() == 0;
  }

  // Memory of the device, filled with a pattern.
  struct tensor {
    std::byte* data;
    std::uint64_t size_bytes;
    region exposed;
    bulk_handle handle;
  };
  tensor expose_tensor(std::uint64_t size_bytes, access_mode how, std::uint64_t salt = 0) {
    auto* data = device.allocate(size_bytes);
    auto bytes = pattern(size_bytes, salt);
    std::copy(bytes.begin(), bytes.end(), device.shadow(data));
    auto made = expose({{{"t", dtype::u8, {size_bytes}}, data, {}}}, how).value();
    auto handle = made.handle();
    return {data, size_bytes, std::move(made), handle};
  }
  std::vector<std::byte> content(const tensor& t) const {
    return {device.shadow(t.data), device.shadow(t.data) + t.size_bytes};
  }

  void submit(
    direction dir, const bulk_handle& remote, std::vector<std::byte>& local_bytes,
    held_completion<transfer_report>& done, bool digests = false) {
    transfer t{
      .dir = dir,
      .remote = remote,
      .ops = {{.local = local_bytes.data(), .length = local_bytes.size()}},
      .digests = digests};
    asking->start(std::move(t), done.callback());
  }
  result<transfer_report> move(
    direction dir, const bulk_handle& remote, std::vector<std::byte>& local_bytes,
    bool digests = false) {
    held_completion<transfer_report> done;
    submit(dir, remote, local_bytes, done, digests);
    return done.take();
  }

  stage request(std::uint64_t number, const tensor& t, std::vector<segment> ranges) const {
    stage m;
    m.number = number;
    m.region = t.handle.region;
    m.key = t.handle.key;
    m.dir = t.handle.allows == access_mode::read ? 1 : 2;
    m.region_end = t.size_bytes;
    m.ranges = std::move(ranges);
    return m;
  }
};

// A peer that says what the test says, and the answers that it gets.
class raw_peer {
public:
  explicit raw_peer(world& w) {
    w.to_peer->deliver = [s = state_](message_kind kind, wire_reader& r) {
      std::lock_guard guard{s->mutex};
      if (kind == message_kind::staged) {
        auto m = read<staged>(r);
        s->lent[m.number] = m;
      } else {
        auto m = read<committed>(r);
        s->ended[m.number] = m;
      }
      return status{};
    };
  }

  staged wait_lent(std::uint64_t number) { return wait(state_->lent, number); }
  committed wait_ended(std::uint64_t number) { return wait(state_->ended, number); }

private:
  struct state {
    std::mutex mutex;
    std::map<std::uint64_t, staged> lent;
    std::map<std::uint64_t, committed> ended;
  };

  template <class Answers>
  typename Answers::mapped_type wait(Answers& answers, std::uint64_t number) {
    BOOST_TEST_REQUIRE(eventually([&] {
      std::lock_guard guard{state_->mutex};
      return answers.count(number) > 0;
    }));
    std::lock_guard guard{state_->mutex};
    return answers[number];
  }

  std::shared_ptr<state> state_ = std::make_shared<state>();
};

inline bool is(std::uint8_t code, errc expected) { return errc_from_wire(code) == expected; }

} // namespace millrace::transport::staged::testing
