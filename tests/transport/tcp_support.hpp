// Two fabrics of this process that reach each other by tcp, and a liar who speaks tcp's messages by
// hand. Used by the tests of the tcp driver.
#pragma once

#include <millrace/core/codec.hpp>
#include <millrace/tests/net/channel_support.hpp>
#include <millrace/tests/support/exposed_matrix.hpp>
#include <millrace/tests/support/fabric_handler.hpp>
#include <millrace/tests/support/heap_memory_source.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/kernel_tls.hpp>
#include <millrace/transport/driver_message.hpp>
#include <millrace/transport/tcp/messages.hpp>
#include <millrace/transport/tcp/tcp_options.hpp>
#include <millrace/transport/tcp/wire.hpp>

#include <netinet/in.h>
#include <sys/ioctl.h>

#include <thread>

namespace millrace::transport::testing {

using millrace::testing::exposed_matrix;
using millrace::testing::fabric_handler;
using millrace::testing::held_completion;
using millrace::testing::pattern;
using millrace::testing::tcp_sockets;

/// Small pieces and short times, so that little suffices to cross every border.
inline tcp_options small_options() {
  tcp_options o;
  o.listen = {"127.0.0.1:0"};
  o.streams = 3;
  o.io_threads = 1;
  o.chunk_bytes = 256u << 10;
  o.small_bytes_max = 16u << 10;
  o.inflight_bytes_max = 512u << 10;
  o.backoff_min_ms = 5;
  o.attempts_max = 100;
  return o;
}

inline std::shared_ptr<fabric> tcp_fabric(
  const std::shared_ptr<net::io_loop>& loop, const tcp_options& options) {
  fabric_options o;
  o.prefer = {"tcp"};
  o.movers = 1;
  o.drivers.edit<tcp_options>() = options;
  return fabric::create(o, loop).value();
}

template <class P>
bool eventually(P condition) {
  for (int i = 0; i < 3000; ++i) {
    if (condition())
      return true;
    std::this_thread::sleep_for(std::chrono::milliseconds{10});
  }
  return false;
}

inline result<transfer_report> move(
  fabric& f, direction dir, const bulk_handle& remote, std::byte* local, std::uint64_t length) {
  held_completion<transfer_report> done;
  f.submit(
    {.dir = dir, .remote = remote, .ops = {{.local = local, .length = length}}}, done.callback());
  return done.take();
}

/// Two sides in one process: whatever one exposes the other can reach.
struct pair_of_fabrics {
  explicit pair_of_fabrics(const tcp_options& options = small_options())
    : pair_of_fabrics(options, options) {}
  pair_of_fabrics(const tcp_options& ours, const tcp_options& theirs)
    : pair_of_fabrics(ours, theirs, "unix:") {}
  /// Channels over TLS, whose port takes streams, too.
  struct on_network {};
  pair_of_fabrics(const tcp_options& options, on_network)
    : pair_of_fabrics(options, options, "tls://127.0.0.1:0") {}
  ~pair_of_fabrics() {
    listening = nullptr;
    here_loop->stop();
    there_loop->stop();
  }

  void connect() {
    auto handler = std::make_shared<fabric_handler>(there);
    link =
      net::testing::connect_to(there_loop, listening->address(), {.local_name = "there"}, handler)
        .value();
    BOOST_TEST_REQUIRE(handler->wait_open());
  }
  /// Everything that came has been admitted or turned away, and is gone.
  void settle() {
    link->close({});
    BOOST_TEST_REQUIRE(eventually([] { return tcp_sockets().empty(); }));
  }

  net::testing::temp_dir dir;
  std::shared_ptr<net::io_loop> here_loop = net::testing::make_loop();
  std::shared_ptr<net::io_loop> there_loop = net::testing::make_loop();
  std::shared_ptr<fabric> here;
  std::shared_ptr<fabric> there;
  std::shared_ptr<net::listener> listening;
  std::shared_ptr<net::channel> link;

private:
  pair_of_fabrics(const tcp_options& ours, const tcp_options& theirs, std::string address)
    : here(tcp_fabric(here_loop, ours)), there(tcp_fabric(there_loop, theirs)) {
    if (address == "unix:")
      address += dir.path + "/s";
    auto handler = std::make_shared<fabric_handler>(here);
    auto open = net::listener::open(
      here_loop, {.address = address, .allow_uids = {}, .streams = here->stream_acceptor()},
      {.local_name = "here", .tls = net::testing::shared_tls()},
      [handler](const net::peer_info&) { return handler; });
    listening = open.value();
    connect();
    BOOST_TEST_REQUIRE(handler->wait_open());
  }
};

/// A socket without manners.
class raw_socket {
public:
  explicit raw_socket(const std::string& address, const std::string& source = {}) {
    auto to = net::socket_address::parse(address).value();
    fd_ = net::unique_fd{::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0)};
    if (!source.empty()) {
      auto from = net::socket_address::parse(source + ":0").value();
      BOOST_TEST_REQUIRE(::bind(fd_.get(), from.get(), from.size_bytes()) == 0);
    }
    BOOST_TEST_REQUIRE(::connect(fd_.get(), to.get(), to.size_bytes()) == 0);
  }

  template <class Bytes>
  bool write(const Bytes& bytes) {
    std::span<const std::byte> left{bytes.data(), bytes.size()};
    while (!left.empty()) {
      auto n = ::send(fd_.get(), left.data(), left.size(), MSG_NOSIGNAL);
      if (n <= 0)
        return false;
      left = left.subspan(static_cast<std::size_t>(n));
    }
    return true;
  }

  /// False if the other end closed before so many bytes.
  template <class Bytes>
  bool read(Bytes& bytes) {
    for (std::size_t got = 0; got < bytes.size();) {
      pollfd ready{fd_.get(), POLLIN, 0};
      BOOST_TEST_REQUIRE(::poll(&ready, 1, 30000) == 1);
      auto n = ::recv(fd_.get(), bytes.data() + got, bytes.size() - got, 0);
      if (n <= 0)
        return false;
      got += static_cast<std::size_t>(n);
    }
    return true;
  }
  bool thrown_out() {
    std::array<std::byte, 4096> more;
    while (true) {
      pollfd ready{fd_.get(), POLLIN, 0};
      if (::poll(&ready, 1, 30000) != 1)
        return false;
      if (::recv(fd_.get(), more.data(), more.size(), 0) <= 0)
        return true;
    }
  }

  /// Bytes that have come and were not read.
  std::size_t waiting() const {
    int n = 0;
    BOOST_TEST_REQUIRE(::ioctl(fd_.get(), FIONREAD, &n) == 0);
    return static_cast<std::size_t>(n);
  }

private:
  net::unique_fd fd_;
};

/// A peer of a real fabric, with the key of its channel and no conscience.
struct liar_and_victim {
  explicit liar_and_victim(const tcp_options& options = hostile_options())
    : victim(tcp_fabric(loop, options)) {
    auto address = "unix:" + dir.path + "/s";
    listening = net::listener::open(
                  loop, {.address = address, .allow_uids = {}}, {.local_name = "victim"},
                  [handler = handler](const net::peer_info&) { return handler; })
                  .value();
    liar = net::testing::connect_to(loop, address, {.local_name = "liar"}, answers).value();
    BOOST_TEST_REQUIRE(answers->wait_frames(1));
    wire_reader reader{answers->frames.at(0).body};
    std::string driver;
    tcp::message_kind kind{};
    BOOST_TEST_REQUIRE(reader(driver, kind, told));
    key = tcp::proof_key(*liar, told.group);
  }
  ~liar_and_victim() {
    liar->close({});
    loop->stop();
  }

  static tcp_options hostile_options() {
    auto o = small_options();
    o.requests_max = 4;
    o.attempts_max = 1;
    return o;
  }

  template <class Message>
  void say(tcp::message_kind kind, const Message& m) {
    std::ignore = transport::send(*liar, kind, m);
  }
  void announce_myself() {
    tcp::announce me;
    me.group[0] = 1;
    me.streams = 3;
    me.requests_max = 1000;
    me.chunk_bytes = 64u << 20;
    say(tcp::message_kind::announce, me);
  }
  const std::string& address() const { return told.addresses.at(0); }

  struct proof_record {
    tcp::claim_message first{};
    tcp::stream_challenge challenge{};
    tcp::stream_proof proof{};
  };

  /// True if the victim let the stream in; a record of what the liar said goes to `said`.
  bool admit(
    raw_socket& s, tcp::stream_claim a, const net::channel_key& with,
    proof_record* said = nullptr) {
    random_bytes(a.nonce.data(), a.nonce.size());
    proof_record r;
    r.first = tcp::encode_claim(a);
    if (!s.write(r.first) || !s.read(r.challenge))
      return false;
    r.proof = tcp::prove_connector(with, r.first, r.challenge);
    if (said)
      *said = r;
    tcp::stream_proof theirs{};
    return s.write(r.proof) && s.read(theirs) &&
      theirs == tcp::prove_acceptor(with, r.first, r.challenge);
  }
  tcp::stream_claim own(std::uint16_t slot = 0) {
    tcp::stream_claim a;
    a.slot = slot;
    a.serial = ++serials;
    a.group = told.group;
    return a;
  }

  /// An honest member, with channel and streams of its own.
  struct member {
    explicit member(liar_and_victim& to) : handler(std::make_shared<fabric_handler>(f)) {
      link = net::testing::connect_to(
               loop, "unix:" + to.dir.path + "/s", {.local_name = "member"}, handler)
               .value();
      BOOST_TEST_REQUIRE(handler->wait_open());
    }
    ~member() {
      link->close({});
      loop->stop();
    }
    /// Bytes of the victim come as they are there.
    bool is_served() {
      exposed_matrix memory{{1, 100'000, 0}, access_mode::read, 6};
      std::vector<std::byte> room(100'000);
      auto moved = move(*f, direction::read, memory.handle(), room.data(), room.size());
      return moved.has_value() && room == pattern(room.size(), 6);
    }
    std::shared_ptr<net::io_loop> loop = net::testing::make_loop();
    std::shared_ptr<fabric> f = tcp_fabric(loop, small_options());
    std::shared_ptr<fabric_handler> handler;
    std::shared_ptr<net::channel> link;
  };

  // The other side closed the channel.
  bool thrown_out() { return answers->wait_closings(1); }

  net::testing::temp_dir dir;
  std::shared_ptr<net::io_loop> loop = net::testing::make_loop();
  std::shared_ptr<fabric> victim;
  std::shared_ptr<fabric_handler> handler = std::make_shared<fabric_handler>(victim);
  std::shared_ptr<net::listener> listening;
  std::shared_ptr<net::testing::recorder> answers = std::make_shared<net::testing::recorder>();
  std::shared_ptr<net::channel> liar;
  tcp::announce told;
  net::channel_key key{};
  std::uint64_t serials = 0;
};

} // namespace millrace::transport::testing
