// Tests fabrics whose lists of drivers differ: each takes what both have.
#include <millrace/tests/net/channel_support.hpp>
#include <millrace/tests/support/exposed_matrix.hpp>
#include <millrace/tests/support/fabric_handler.hpp>
#include <millrace/tests/support/fake_channel.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/transport/driver_message.hpp>
#include <millrace/transport/fabric_messages.hpp>
#include <millrace/transport/tcp/tcp_options.hpp>

#include <boost/test/unit_test.hpp>
#include <fmt/ranges.h>

#include <algorithm>
#include <future>

using namespace millrace;
using namespace millrace::net;
using namespace millrace::testing;
using namespace millrace::transport;

namespace {

using names = std::vector<std::string>;

constexpr std::uint64_t size_bytes = 300'000;
constexpr std::uint64_t memory_bytes = 4u << 20;

bool has(const names& all, std::string_view name) {
  return std::ranges::find(all, name) != all.end();
}

// Every list of these drivers but the empty one.
std::vector<names> lists() {
  std::vector<names> out;
  for (int bits = 1; bits < 8; ++bits) {
    auto& list = out.emplace_back();
    for (int i = 0; auto name : {"shm", "tcp", "staged"})
      if (bits >> i++ & 1)
        list.emplace_back(name);
  }
  return out;
}

// Tells when the first request has come, which the peer sends as soon as the channel is open.
class side : public fabric_handler {
public:
  side(const std::shared_ptr<fabric>& f, bool older) : fabric_handler(f), older_(older) {}

  void on_open(const std::shared_ptr<channel>& c) override {
    fabric_handler::on_open(c);
    BOOST_TEST(c->send(frame_kind::request, 1, {}, {}).ok());
  }
  void on_frame(channel& c, frame f) override {
    if (f.kind == frame_kind::request)
      return asked_.set_value();
    wire_reader reader{f.body};
    std::string name;
    reader(name);
    if (!older_ || name != driver_of(fabric_message{}))
      fabric_handler::on_frame(c, std::move(f));
  }
  bool wait_asked() { return asked_.get_future().wait_for(std::chrono::seconds{30}) == ready; }

private:
  static constexpr auto ready = std::future_status::ready;
  bool older_; // as a build that does not know the messages of fabrics
  std::promise<void> asked_;
};

struct world {
  world(const names& a, const names& b, bool older = false) {
    for (auto& list : {a, b}) {
      fabric_options o;
      o.prefer = list;
      o.movers = 1;
      o.drivers.edit<tcp_options>().listen = {"127.0.0.1:0"};
      o.drivers.edit<tcp_options>().streams = 1;
      fabrics.push_back(fabric::create(o, loop).value());
      memory.push_back(
        fabrics.back()->make_memory({.name = "peers", .size_bytes = memory_bytes}).value());
      sides.push_back(std::make_shared<side>(fabrics.back(), older));
    }
    listener_options where{.address = "unix:" + dir.path + "/s", .allow_uids = {}};
    where.streams = fabrics[0]->stream_acceptor();
    listening =
      listener::open(loop, where, {}, [this](const peer_info&) { return sides[0]; }).value();
    link = net::testing::connect_to(loop, where.address, {}, sides[1]).value();
    for (auto& s : sides)
      BOOST_TEST_REQUIRE(s->wait_asked());
  }
  ~world() {
    listening = nullptr;
    loop->stop();
  }

  // A transfer by one of the two with memory of the other. Both are this process.
  result<transfer_report> move(std::size_t by, direction dir, fake_device* device) {
    exposed_matrix there{{1, size_bytes, 0}, access_for(dir), 3, device};
    auto block = memory[by]->allocate(size_bytes, 4096).value();
    auto bytes = pattern(size_bytes, dir == direction::read ? 0 : 5);
    std::copy(bytes.begin(), bytes.end(), block.data);
    auto moved = await<transfer_report>([&](auto done) {
      fabrics[by]->submit(
        {.dir = dir,
         .remote = there.handle(),
         .ops = {{.local = block.data, .length = size_bytes}},
         .hold = block.owner},
        done);
    });
    if (moved)
      BOOST_TEST(std::equal(block.data, block.data + size_bytes, there.dense().data()));
    return moved;
  }

  net::testing::temp_dir dir;
  std::shared_ptr<io_loop> loop = net::testing::make_loop();
  std::vector<std::shared_ptr<fabric>> fabrics;
  std::vector<std::shared_ptr<memory_source>> memory;
  std::vector<std::shared_ptr<side>> sides;
  std::shared_ptr<listener> listening;
  std::shared_ptr<channel> link;
};

// The driver that moves the bytes, empty if none can.
std::string expected(const names& a, const names& b, bool on_device) {
  auto both = [&](std::string_view name) { return has(a, name) && has(b, name); };
  if (both("shm"))
    return "shm";
  if (!both("tcp"))
    return "";
  return !on_device ? "tcp" : both("staged") ? "staged" : "";
}

} // namespace

BOOST_AUTO_TEST_SUITE(fabric_peers)

BOOST_AUTO_TEST_CASE(a_transfer_takes_what_both_have_or_fails_at_once) {
  fake_device gpu{256u << 20};
  for (auto& a : lists())
    for (auto& b : lists()) {
      world w{a, b};
      for (std::size_t by : {0, 1})
        for (auto dir : {direction::read, direction::write})
          for (auto* device : {static_cast<fake_device*>(nullptr), &gpu}) {
            auto words = fmt::format(
              "{} and {} by={} dir={} device={}", a, b, by, static_cast<int>(dir),
              device != nullptr);
            BOOST_TEST_CONTEXT(words) {
              auto name = expected(a, b, device != nullptr);
              auto moved = w.move(by, dir, device);
              BOOST_TEST_REQUIRE(moved.has_value() == !name.empty(), why(moved));
              if (moved)
                BOOST_TEST(moved->driver == name);
              else
                BOOST_TEST((moved.error().code() == errc::peer_lost));
            }
          }
      BOOST_TEST(w.link->is_open());
    }
}

BOOST_AUTO_TEST_CASE(a_peer_of_an_older_build_that_does_not_say_what_it_has_is_taken_to_have_all) {
  names all{"shm", "tcp"};
  world w{all, all, true};
  auto moved = w.move(0, direction::read, nullptr);
  BOOST_TEST_REQUIRE(moved.has_value(), why(moved));
  BOOST_TEST(moved->driver == "shm");
}

BOOST_AUTO_TEST_CASE(what_is_no_message_of_a_fabric_closes_the_channel_and_a_later_kind_does_not) {
  class closed_channel : public fake_channel {
  public:
    using fake_channel::fake_channel;
    void close(status why, std::uint32_t) override { closed = why; }
    status closed;
  };
  fabric_options options;
  options.movers = 1;
  auto f = fabric::with_drivers(options, {});
  auto c = std::make_shared<closed_channel>(random_id<peer_id>(), "n7");
  f->peer_opened(c);
  auto later = driver_message(fabric_message{77}, drivers_here{{"shm"}});
  f->on_frame(*c, {frame_kind::driver, 0, later, {}});
  BOOST_TEST(c->closed.ok());
  auto whole = driver_message(fabric_message::drivers, drivers_here{{"shm"}});
  f->on_frame(*c, {frame_kind::driver, 0, std::span{whole}.first(whole.size() - 1), {}});
  BOOST_TEST((c->closed.code() == errc::protocol_error));
}

BOOST_AUTO_TEST_SUITE_END()
