// Transfers with device memory through staging memory of its owner: the bytes, the bounds, and every early end.
#include <millrace/core/assert.hpp>
#include <millrace/core/digest.hpp>
#include <millrace/tests/support/fake_device.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/pattern.hpp>
#include <millrace/tests/support/process.hpp>
#include <millrace/transport/fabric.hpp>
#include <millrace/transport/local/local_driver.hpp>
#include <millrace/transport/staged/asking_side.hpp>
#include <millrace/transport/staged/lending_side.hpp>
#include <millrace/transport/staged/send.hpp>
#include <millrace/transport/staged/staged_driver.hpp>

#include <boost/test/unit_test.hpp>

#include <future>

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::transport;
using namespace millrace::transport::staged;

namespace {

constexpr std::uint64_t chunk_bytes = 512u << 10;

// Hands what is sent to a function, as if the peer had received it.
class wire : public channel {
public:
  using receiver = std::function<status(message_kind, wire_reader&)>;

  wire() {
    who_.id = this_peer(); // so that the local driver can be the carrier
    who_.name = "n7";
  }
  const peer_info& peer() const noexcept override { return who_; }
  bool is_open() const noexcept override { return true; }
  channel_key derive_key(std::string_view) const override { return {}; }
  status send(
    frame_kind, std::uint64_t, std::span<const std::byte> body, std::span<const int>) override {
    wire_reader reader{body};
    std::string driver;
    message_kind kind{};
    reader(driver);
    reader(kind);
    auto bad = deliver(kind, reader);
    MILLRACE_ASSERT(bad.ok());
    return {};
  }
  void close(status, std::uint32_t) override {}

  receiver deliver;

private:
  peer_info who_;
};

template <class Message>
Message read(wire_reader& reader) {
  Message m;
  reader(m);
  return m;
}

staged_options small_options() {
  return {
    .size_bytes = 4 * chunk_bytes,
    .chunk_bytes = chunk_bytes,
    .chunks_max = 3,
    .hold_timeout_ms = 3'600'000};
}

// An owner of a device, and one peer.
struct world {
  staged_options options;
  fake_device device{256u << 20};
  std::shared_ptr<mover_pool> movers = std::make_shared<mover_pool>(2);
  std::shared_ptr<driver> local = make_local_driver(movers, {});
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
      std::chrono::milliseconds{o.hold_timeout_ms});
    lending = std::make_shared<lending_side>(to_peer, pool, o);
    to_owner->deliver = [to = std::weak_ptr{lending}](message_kind kind, wire_reader& r) {
      auto l = to.lock();
      return l ? deliver(*l, kind, r) : status{};
    };
    to_peer->deliver = [to = std::weak_ptr{asking}](message_kind kind, wire_reader& r) {
      auto a = to.lock();
      if (a && kind == message_kind::staged)
        a->on_staged(read<staged::staged>(r));
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
    transfer t{dir, remote, {{0, local_bytes.data(), local_bytes.size()}}, digests, nullptr};
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
    m.extent = t.size_bytes;
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
        auto m = read<staged::staged>(r);
        s->lent[m.number] = m;
      } else {
        auto m = read<committed>(r);
        s->ended[m.number] = m;
      }
      return status{};
    };
  }

  staged::staged wait_lent(std::uint64_t number) { return wait(state_->lent, number); }
  committed wait_ended(std::uint64_t number) { return wait(state_->ended, number); }

private:
  struct state {
    std::mutex mutex;
    std::map<std::uint64_t, staged::staged> lent;
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

bool is(std::uint8_t code, errc expected) { return errc_from_wire(code) == expected; }

} // namespace

BOOST_AUTO_TEST_SUITE(staged_cutter)

BOOST_AUTO_TEST_CASE(pieces_fill_chunks_in_the_order_of_the_ops) {
  std::vector<std::byte> room(1000);
  transfer t{
    direction::read,
    {},
    {{900, room.data(), 70}, {5, room.data() + 70, 60}, {80, nullptr, 0}},
    false,
    nullptr};
  cutter cut{t, 100};
  BOOST_TEST(cut.extent() == 970u);
  auto first = cut.next();
  BOOST_TEST((first.ranges == std::vector<segment>{{900, 70}, {5, 30}}));
  BOOST_TEST_REQUIRE(first.ops.size() == 2u);
  BOOST_TEST((first.ops[1].remote_offset == 70u && first.ops[1].local == room.data() + 70));
  BOOST_TEST(!cut.at_end());
  auto second = cut.next();
  BOOST_TEST((second.ranges == std::vector<segment>{{35, 30}}));
  BOOST_TEST((second.ops[0].remote_offset == 0u && second.ops[0].local == room.data() + 100));
  BOOST_TEST(cut.at_end());
}

BOOST_AUTO_TEST_CASE(many_ranges_are_bounded_and_none_is_one_empty_piece) {
  std::vector<std::byte> room(ranges_max + 1);
  transfer many;
  for (std::size_t i = 0; i <= ranges_max; ++i)
    many.ops.push_back({i, room.data() + i, 1});
  cutter cut{many, chunk_bytes};
  BOOST_TEST(cut.next().ranges.size() == ranges_max);
  BOOST_TEST(cut.next().ranges.size() == 1u);
  BOOST_TEST(cut.at_end());
  transfer none;
  cutter empty{none, chunk_bytes};
  BOOST_TEST(!empty.at_end());
  BOOST_TEST(empty.next().ranges.empty());
  BOOST_TEST(empty.at_end());
}

BOOST_AUTO_TEST_CASE(digest_blocks_are_not_divided) {
  std::vector<std::byte> room(4 * digest_block_bytes);
  copy_op op{0, room.data() + 100, 3 * digest_block_bytes, 100, 50};
  transfer t{direction::write, {}, {op}, true, nullptr};
  cutter cut{t, digest_block_bytes + 1000};
  std::uint64_t digests = 0, bytes = 0;
  while (!cut.at_end()) {
    auto p = cut.next();
    for (auto& o : p.ops) {
      auto at = static_cast<std::uint64_t>(o.local - o.lead - room.data());
      BOOST_TEST(at % digest_block_bytes == 0u);
      digests += digest_count(o.lead + o.length + o.tail);
      bytes += o.length;
    }
    BOOST_TEST(p.bytes <= digest_block_bytes + 1000);
  }
  BOOST_TEST(bytes == op.length);
  BOOST_TEST(digests == digest_count(100 + op.length + 50));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(staged_transfers)

BOOST_AUTO_TEST_CASE(bytes_pass_in_both_directions_through_few_chunks) {
  world w;
  auto size = 20 * chunk_bytes + 77;
  auto source = w.expose_tensor(size, access_mode::read, 3);
  std::vector<std::byte> here(size);
  auto in = w.move(direction::read, source.handle, here, true);
  BOOST_TEST_REQUIRE(in.has_value(), why(in));
  BOOST_TEST((here == pattern(size, 3)));
  BOOST_TEST(in->driver == "staged");
  BOOST_TEST(in->carrier == "local");
  BOOST_TEST_REQUIRE(in->digests.size() == digest_count(size));
  for (std::size_t i = 0; i < in->digests.size(); ++i) {
    auto at = i * digest_block_bytes;
    BOOST_TEST(in->digests[i] == digest(here.data() + at, std::min(digest_block_bytes, size - at)));
  }
  auto target = w.expose_tensor(size, access_mode::write);
  here = pattern(size, 4);
  auto out = w.move(direction::write, target.handle, here);
  BOOST_TEST_REQUIRE(out.has_value(), why(out));
  BOOST_TEST((w.content(target) == here));
  BOOST_TEST(w.pool->now().chunks == 4u);
  BOOST_TEST(w.device.pins() == 1u);
}

BOOST_AUTO_TEST_CASE(a_write_is_acknowledged_when_the_device_has_the_bytes) {
  world w;
  auto target = w.expose_tensor(100, access_mode::write, 1);
  std::promise<void> go;
  auto gate = go.get_future().share();
  w.device.on_copy([gate] {
    gate.wait();
    return status{};
  });
  std::vector<std::byte> here = pattern(100, 2);
  held_completion<transfer_report> done;
  w.submit(direction::write, target.handle, here, done);
  BOOST_TEST(eventually([&] { return w.device.copies() == 1; }));
  BOOST_TEST(!done.ready());
  go.set_value();
  BOOST_TEST(done.take().has_value());
  BOOST_TEST((w.content(target) == here));
}

BOOST_AUTO_TEST_CASE(host_and_device_tensors_are_one_region) {
  world w;
  auto on_device = pattern(100'000, 1), on_host = pattern(100'000, 2);
  auto* data = w.device.allocate(100'000);
  std::copy(on_device.begin(), on_device.end(), w.device.shadow(data));
  auto exposed = expose(
                   {{{"a", dtype::u8, {100'000}}, data, {}},
                    {{"b", dtype::u8, {100'000}}, on_host.data(), {}},
                    {{"c", dtype::u8, {10, 10}}, data, {1000, 1}}},
                   access_mode::read)
                   .value();
  std::vector<std::byte> here(200'100);
  auto moved = w.move(direction::read, exposed.handle(), here);
  BOOST_TEST_REQUIRE(moved.has_value(), why(moved));
  BOOST_TEST(std::equal(on_device.begin(), on_device.end(), here.begin()));
  BOOST_TEST(std::equal(on_host.begin(), on_host.end(), here.begin() + 100'000));
  for (int row = 0; row < 10; ++row)
    BOOST_TEST(std::equal(
      on_device.begin() + row * 1000, on_device.begin() + row * 1000 + 10,
      here.begin() + 200'000 + row * 10));
}

BOOST_AUTO_TEST_CASE(more_transfers_than_chunks_take_turns) {
  world w;
  auto source = w.expose_tensor(3 * chunk_bytes, access_mode::read, 5);
  std::vector<std::vector<std::byte>> here(12, std::vector<std::byte>(3 * chunk_bytes));
  std::vector<held_completion<transfer_report>> done(12);
  for (std::size_t i = 0; i < done.size(); ++i)
    w.submit(direction::read, source.handle, here[i], done[i]);
  BOOST_TEST(w.asking->chunks() <= w.options.chunks_max);
  for (std::size_t i = 0; i < done.size(); ++i) {
    BOOST_TEST(done[i].take().has_value());
    BOOST_TEST((here[i] == pattern(3 * chunk_bytes, 5)));
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(staged_ends)

BOOST_AUTO_TEST_CASE(withdrawing_waits_for_the_copy_and_ends_the_transfer) {
  world w;
  auto target = w.expose_tensor(8 * chunk_bytes, access_mode::write, 1);
  std::promise<void> go;
  auto gate = go.get_future().share();
  w.device.on_copy([gate] {
    gate.wait();
    return status{};
  });
  std::vector<std::byte> here = pattern(8 * chunk_bytes, 2);
  held_completion<transfer_report> done;
  w.submit(direction::write, target.handle, here, done);
  BOOST_TEST(eventually([&] { return w.device.copies() > 0; }));
  auto withdrawing = std::async(std::launch::async, [&] { target.exposed.withdraw(); });
  // It is refused already, and not yet let go of.
  BOOST_TEST(eventually([&] {
    return !find_region(
              target.handle.region, target.handle.key, access_mode::write, memory_reach::any)
              .has_value();
  }));
  BOOST_TEST((withdrawing.wait_for(std::chrono::seconds{0}) == std::future_status::timeout));
  go.set_value();
  withdrawing.get();
  auto copied = w.device.copies();
  auto kept = w.content(target);
  auto moved = done.take();
  BOOST_TEST_REQUIRE(!moved.has_value());
  BOOST_TEST((moved.error().code() == errc::permission_denied));
  BOOST_TEST(eventually([&] { return w.all_is_back(); }));
  BOOST_TEST(w.device.copies() == copied);
  BOOST_TEST((w.content(target) == kept));
}

BOOST_AUTO_TEST_CASE(what_the_device_cannot_copy_ends_one_transfer) {
  world w;
  auto source = w.expose_tensor(3 * chunk_bytes, access_mode::read, 1);
  auto target = w.expose_tensor(3 * chunk_bytes, access_mode::write);
  std::vector<std::byte> here(3 * chunk_bytes);
  for (auto dir : {direction::read, direction::write}) {
    auto& with = dir == direction::read ? source : target;
    w.device.on_copy([] { return status{errc::io_error, "fake:0 fell off the bus"}; });
    auto moved = w.move(dir, with.handle, here);
    BOOST_TEST_REQUIRE(!moved.has_value());
    BOOST_TEST((moved.error().code() == errc::io_error));
    BOOST_TEST((moved.error().detail().find("fake:0") != std::string::npos));
    BOOST_TEST(eventually([&] { return w.all_is_back(); }));
    w.device.on_copy(nullptr);
    moved = w.move(dir, with.handle, here);
    BOOST_TEST(moved.has_value(), why(moved));
  }
}

BOOST_AUTO_TEST_CASE(a_carrier_that_fails_leaves_nothing_by_which_late_bytes_could_come) {
  world w;
  auto target = w.expose_tensor(100, access_mode::write, 1);
  bulk_handle seen;
  w.carry = [&](transfer t, completion<transfer_report> done) {
    seen = t.remote;
    done(fail(errc::io_error, "the network is gone"));
  };
  std::vector<std::byte> here = pattern(100, 2);
  auto moved = w.move(direction::write, target.handle, here);
  BOOST_TEST((!moved && moved.error().code() == errc::io_error));
  BOOST_TEST(eventually([&] { return w.all_is_back(); }));
  BOOST_TEST(!find_region(seen.region, seen.key, access_mode::write).has_value());
  BOOST_TEST((w.content(target) == pattern(100, 1)));
}

BOOST_AUTO_TEST_CASE(a_peer_that_dies_gives_everything_back) {
  world w;
  auto target = w.expose_tensor(2 * chunk_bytes, access_mode::write);
  raw_peer peer{w};
  BOOST_TEST(w.lending->on_stage(w.request(1, target, {{0, 100}})).ok());
  BOOST_TEST(w.lending->on_stage(w.request(2, target, {{100, 100}})).ok());
  auto one = peer.wait_lent(1);
  peer.wait_lent(2);
  // The third is being emptied while the connection ends.
  std::promise<void> go;
  auto gate = go.get_future().share();
  w.device.on_copy([gate] {
    gate.wait();
    return status{};
  });
  BOOST_TEST(w.lending->on_commit({2}).ok());
  BOOST_TEST(eventually([&] { return w.device.copies() == 1; }));
  w.lending->close();
  go.set_value();
  BOOST_TEST(eventually([&] { return w.all_is_back(); }));
  BOOST_TEST(!find_region(one.region, one.key, access_mode::write).has_value());
  target.exposed.withdraw();
  BOOST_TEST(eventually([&] { return exposed_regions() == w.regions_before; }));
}

BOOST_AUTO_TEST_CASE(an_owner_that_dies_ends_what_waits_and_what_moves) {
  world w;
  auto source = w.expose_tensor(9 * chunk_bytes, access_mode::read);
  std::vector<completion<transfer_report>> moving;
  std::mutex mutex;
  w.carry = [&](transfer, completion<transfer_report> done) {
    std::lock_guard guard{mutex};
    moving.push_back(std::move(done));
  };
  std::vector<std::byte> here(9 * chunk_bytes);
  std::vector<held_completion<transfer_report>> done(2);
  for (auto& d : done)
    w.submit(direction::read, source.handle, here, d);
  BOOST_TEST(eventually([&] {
    std::lock_guard guard{mutex};
    return moving.size() == w.options.chunks_max;
  }));
  w.asking->close({errc::peer_lost, "n7 is gone"});
  // Somebody may still write to the local memory: not before the fabric says so.
  BOOST_TEST((!done[0].ready() || !done[1].ready()));
  for (auto& d : moving)
    d(fail(errc::peer_lost, "n7 is gone"));
  for (auto& d : done) {
    auto outcome = d.take();
    BOOST_TEST((!outcome && outcome.error().code() == errc::peer_lost));
  }
  auto late = w.move(direction::read, source.handle, here);
  BOOST_TEST((!late && late.error().code() == errc::peer_lost));
}

BOOST_AUTO_TEST_CASE(an_owner_that_does_not_answer_is_given_up) {
  world w;
  auto source = w.expose_tensor(100, access_mode::read);
  std::vector<std::uint64_t> released;
  w.to_owner->deliver = [&](message_kind kind, wire_reader& r) {
    if (kind == message_kind::release)
      released.push_back(read<release>(r).number);
    return status{};
  };
  std::vector<std::byte> here(100);
  held_completion<transfer_report> done;
  w.submit(direction::read, source.handle, here, done);
  w.asking->expire(steady_clock::now());
  BOOST_TEST(!done.ready());
  w.asking->expire(steady_clock::now() + std::chrono::hours{2});
  auto outcome = done.take();
  BOOST_TEST((!outcome && outcome.error().code() == errc::deadline_exceeded));
  // What comes late is given back.
  w.asking->on_staged({1, 0, {}, 5, {}});
  BOOST_TEST((released == std::vector<std::uint64_t>{1}));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(staged_hostile)

BOOST_AUTO_TEST_CASE(nobody_gets_more_chunks_than_the_bound) {
  world w;
  auto source = w.expose_tensor(1000, access_mode::read);
  raw_peer peer{w};
  for (std::uint64_t n = 1; n <= 4; ++n)
    BOOST_TEST(w.lending->on_stage(w.request(n, source, {{0, 10}})).ok());
  BOOST_TEST(is(peer.wait_lent(4).code, errc::busy));
  for (std::uint64_t n = 1; n <= 3; ++n)
    BOOST_TEST(is(peer.wait_lent(n).code, errc::ok));
  // What is given back can be had again.
  w.lending->on_release({2, false});
  BOOST_TEST(w.lending->on_stage(w.request(5, source, {{0, 10}})).ok());
  BOOST_TEST(is(peer.wait_lent(5).code, errc::ok));
}

BOOST_AUTO_TEST_CASE(requests_without_right_or_sense_get_no_chunk) {
  world w;
  auto source = w.expose_tensor(1000, access_mode::read);
  std::vector<std::byte> host(1000);
  auto of_host = expose({{{"h", dtype::u8, {1000}}, host.data(), {}}}, access_mode::read).value();
  raw_peer peer{w};
  auto refused = [&](stage m, errc code) {
    auto number = m.number;
    BOOST_TEST(w.lending->on_stage(std::move(m)).ok());
    BOOST_TEST(is(peer.wait_lent(number).code, code));
  };
  auto wrong_key = w.request(1, source, {});
  wrong_key.key.bytes[0] ^= 1;
  refused(wrong_key, errc::permission_denied);
  auto wrong_way = w.request(2, source, {{0, 10}});
  wrong_way.dir = 2;
  refused(wrong_way, errc::permission_denied);
  refused(w.request(3, source, {{995, 10}}), errc::permission_denied);
  refused(w.request(4, source, {{~0ull - 5, 10}}), errc::permission_denied);
  auto beyond = w.request(5, source, {{0, 10}});
  beyond.extent = 1001;
  refused(beyond, errc::permission_denied);
  auto no_device = w.request(6, source, {{0, 10}});
  no_device.region = of_host.handle().region;
  no_device.key = of_host.handle().key;
  refused(no_device, errc::unsupported);
  BOOST_TEST(w.pool->now().chunks == 0u);
  BOOST_TEST(w.device.copies() == 0u);

  auto breaks = [&](const stage& m) {
    auto bad = w.lending->on_stage(m);
    BOOST_TEST((bad.code() == errc::protocol_error));
  };
  auto no_way = w.request(7, source, {{0, 10}});
  no_way.dir = 3;
  breaks(no_way);
  breaks(w.request(8, source, {{0, chunk_bytes}, {0, 1}}));
  breaks(w.request(9, source, {{0, 1}, {0, ~0ull}}));
  breaks(w.request(10, source, std::vector<segment>(ranges_max + 1)));
  BOOST_TEST(w.lending->on_stage(w.request(11, source, {{0, 10}})).ok());
  BOOST_TEST(is(peer.wait_lent(11).code, errc::ok));
  breaks(w.request(11, source, {{0, 10}}));
  BOOST_TEST((w.lending->on_commit({11}).code() == errc::protocol_error));
}

BOOST_AUTO_TEST_CASE(a_chunk_that_is_kept_too_long_is_taken_back) {
  auto options = small_options();
  options.size_bytes = chunk_bytes;
  world w{options};
  auto target = w.expose_tensor(1000, access_mode::write, 1);
  raw_peer peer{w};
  BOOST_TEST(w.lending->on_stage(w.request(1, target, {{0, 10}})).ok());
  auto lent = peer.wait_lent(1);
  BOOST_TEST(w.lending->on_stage(w.request(2, target, {{0, 10}})).ok());
  // The second waits for the first one's chunk, in vain.
  w.lending->expire(steady_clock::now());
  BOOST_TEST(w.lending->requests() == 2u);
  w.lending->expire(steady_clock::now() + std::chrono::hours{2});
  BOOST_TEST(is(peer.wait_lent(2).code, errc::busy));
  BOOST_TEST(eventually([&] { return w.all_is_back(); }));
  BOOST_TEST(!find_region(lent.region, lent.key, access_mode::write).has_value());
  BOOST_TEST(w.lending->on_commit({1}).ok());
  BOOST_TEST(is(peer.wait_ended(1).code, errc::deadline_exceeded));
  BOOST_TEST((w.content(target) == pattern(1000, 1)));
}

BOOST_AUTO_TEST_CASE(another_peer_finds_nothing_of_what_passed) {
  auto options = small_options();
  options.size_bytes = chunk_bytes;
  world w{options};
  auto secret = w.expose_tensor(chunk_bytes, access_mode::read, 1);
  auto other = w.expose_tensor(100, access_mode::read, 2);
  raw_peer peer{w};
  BOOST_TEST(w.lending->on_stage(w.request(1, secret, {{0, chunk_bytes}})).ok());
  auto first = peer.wait_lent(1);
  w.lending->on_release({1, false});
  auto second_channel = std::make_shared<wire>();
  second_channel->deliver = w.to_peer->deliver;
  auto second_peer = std::make_shared<lending_side>(second_channel, w.pool, options);
  BOOST_TEST(second_peer->on_stage(w.request(2, other, {{0, 100}})).ok());
  auto second = peer.wait_lent(2);
  BOOST_TEST(!find_region(first.region, first.key, access_mode::read).has_value());
  auto chunk_now = find_region(second.region, second.key, access_mode::read).value();
  std::vector<std::byte> seen(chunk_bytes);
  chunk_now.lease()->memory().read(0, seen.data(), chunk_bytes, store_mode::cached);
  auto expected = pattern(100, 2);
  expected.resize(chunk_bytes, std::byte{0});
  BOOST_TEST((seen == expected));
  second_peer->close();
}

BOOST_AUTO_TEST_CASE(requests_that_come_and_go_leave_nothing_behind) {
  auto options = small_options();
  options.size_bytes = chunk_bytes;
  world w{options};
  auto source = w.expose_tensor(1000, access_mode::read);
  raw_peer peer{w};
  BOOST_TEST(w.lending->on_stage(w.request(1, source, {{0, 10}})).ok());
  peer.wait_lent(1);
  for (std::uint64_t n = 2; n < 2000; ++n) {
    BOOST_TEST_REQUIRE(w.lending->on_stage(w.request(n, source, {{0, 10}})).ok());
    w.lending->on_release({n, false});
  }
  BOOST_TEST(w.pool->now().waiting == 0u);
  BOOST_TEST(w.lending->requests() == 1u);
  w.lending->on_release({1, false});
  BOOST_TEST(w.lending->on_stage(w.request(3000, source, {{0, 10}})).ok());
  BOOST_TEST(is(peer.wait_lent(3000).code, errc::ok));
}

BOOST_AUTO_TEST_CASE(a_number_that_is_used_again_at_once_costs_no_chunk) {
  world w;
  auto source = w.expose_tensor(1000, access_mode::read);
  raw_peer peer{w};
  for (int i = 0; i < 3000; ++i) {
    // A request whose chunk is on its way may still have the number.
    if (!w.lending->on_stage(w.request(5, source, {{0, 10}})).ok())
      continue;
    w.lending->on_release({5, false});
    static_cast<void>(w.lending->on_stage(w.request(5, source, {{10, 10}})));
    w.lending->on_release({5, false});
  }
  BOOST_TEST(eventually([&] {
    w.lending->on_release({5, false});
    auto now = w.pool->now();
    return w.lending->requests() == 0 && now.waiting == 0 && now.free == now.chunks;
  }));
}

BOOST_AUTO_TEST_CASE(an_owner_that_takes_back_its_word_while_bytes_move_is_not_heard) {
  world w;
  auto source = w.expose_tensor(100, access_mode::read);
  std::promise<completion<transfer_report>> moving;
  w.carry = [&](transfer, completion<transfer_report> done) { moving.set_value(std::move(done)); };
  std::vector<std::byte> here(100);
  held_completion<transfer_report> done;
  w.submit(direction::read, source.handle, here, done);
  auto moved = moving.get_future().get();
  w.asking->on_staged({1, static_cast<std::uint8_t>(errc::io_error), "no", 0, {}});
  BOOST_TEST(!done.ready()); // somebody writes to the memory still
  moved(transfer_report{});
  BOOST_TEST(done.take().has_value());
  w.asking->on_staged({1, static_cast<std::uint8_t>(errc::io_error), "no", 0, {}});
}

BOOST_AUTO_TEST_CASE(an_owner_that_answers_senselessly_confuses_only_itself) {
  world w;
  auto source = w.expose_tensor(1000, access_mode::read, 1);
  BOOST_TEST((w.asking->on_hello({2, chunk_bytes, 1}).code() == errc::unsupported_version));
  BOOST_TEST((w.asking->on_hello({1, chunk_bytes, 1}).code() == errc::protocol_error));
  BOOST_TEST((check(hello{1, 0, 1}).code() == errc::protocol_error));
  BOOST_TEST((check(hello{1, chunk_bytes, 0}).code() == errc::protocol_error));
  BOOST_TEST((check(hello{1, ~0ull, 1}).code() == errc::protocol_error));
  w.asking->on_staged({77, 0, {}, 5, {}});
  w.asking->on_committed({77, 0, {}});
  std::vector<std::byte> here(1000);
  auto moved = w.move(direction::read, source.handle, here);
  BOOST_TEST(moved.has_value(), why(moved));
  BOOST_TEST((here == pattern(1000, 1)));
}

BOOST_AUTO_TEST_SUITE_END()
