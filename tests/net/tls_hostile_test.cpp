// Tests strangers on the port and members that lie. They are refused, bounded and logged once, and
// other members are served meanwhile.
#include "tls_support.hpp"

#include <millrace/net/channel/refusal_log.hpp>

#include <openssl/bio.h>

#include <random>
#include <thread>

using namespace millrace;
using namespace millrace::net;
using namespace millrace::net::testing;
using namespace std::chrono_literals;

namespace {

/// A service with one well-behaved client, which must not notice what happens around it.
struct attacked : service {
  explicit attacked(channel_options o = {}, listener_options w = {})
    : service(std::move(o), on_network(std::move(w))), good(std::make_shared<recorder>()) {
    forget_refusals();
    good_channel = connect(good);
    BOOST_REQUIRE(handler->wait([&] { return handler->channels.size() == 1; }));
  }

  static listener_options on_network(listener_options w) {
    w.address = "tls://127.0.0.1:0";
    return w;
  }

  void check_good_client_works() {
    auto before = handler->frame_count();
    BOOST_TEST(good_channel->send(frame_kind::driver, 7, bytes_of(1000)).ok());
    BOOST_TEST(handler->wait_frames(before + 1));
    BOOST_TEST(good->closings.empty());
    BOOST_TEST(good_channel->is_open());
  }
  void check_newcomers_are_served() {
    auto c = connect_to(loop, address(), {}, std::make_shared<recorder>());
    BOOST_REQUIRE_MESSAGE(c, (c ? "" : c.error().to_string()));
    (*c)->close({});
  }
  std::size_t opened() {
    settle(loop);
    return handler->channels.size();
  }

  std::shared_ptr<recorder> good;
  std::shared_ptr<channel> good_channel;
};

channel_options short_time() {
  channel_options o;
  o.handshake_timeout_ms = 300;
  return o;
}

byte_buffer random_noise(std::mt19937& random, std::size_t size) {
  byte_buffer out(size);
  for (auto& b : out)
    b = static_cast<std::byte>(random());
  return out;
}

/// A member whose bytes leave when the test says so, and are kept.
struct held_member {
  explicit held_member(const std::string& address)
    : fd(tcp_to(address)), ssl(SSL_new(shared_tls()->native()), SSL_free) {
    SSL_set_bio(ssl.get(), in, out);
  }

  // Returns with the last flight of the handshake still held.
  void shake_tls() {
    while (SSL_connect(ssl.get()) != 1) {
      let_go();
      char room[4096];
      auto n = ::recv(fd.get(), room, sizeof(room), 0);
      BOOST_REQUIRE(n > 0);
      BIO_write(in, room, static_cast<int>(n));
    }
  }
  void write(std::span<const std::byte> bytes) {
    BOOST_REQUIRE(SSL_write(ssl.get(), bytes.data(), static_cast<int>(bytes.size())) > 0);
  }
  void let_go() {
    byte_buffer bytes(BIO_ctrl_pending(out));
    if (bytes.empty())
      return;
    BIO_read(out, bytes.data(), static_cast<int>(bytes.size()));
    BOOST_REQUIRE(write_all(fd.get(), bytes));
    sent.insert(sent.end(), bytes.begin(), bytes.end());
  }

  unique_fd fd;
  BIO* in = BIO_new(BIO_s_mem());
  BIO* out = BIO_new(BIO_s_mem());
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl;
  byte_buffer sent;
};

/// What an honest client sends on a connection.
byte_buffer recorded_connection(const std::string& address) {
  held_member m{address};
  m.shake_tls();
  m.let_go();
  auto body = encode(raw_client::own_hello());
  m.write(encode_header({frame_kind::hello, 0, static_cast<std::uint32_t>(body.size()), 0}));
  m.write(body);
  m.let_go();
  return m.sent;
}

/// Keeps the streams that it is given.
struct kept_streams : stream_acceptor {
  void receive(unique_fd fd, const socket_address& from) override {
    std::lock_guard guard{mutex};
    fds.push_back(std::move(fd));
    sources.push_back(from);
    changed.notify_all();
  }
  bool wait(std::size_t n) {
    std::unique_lock lock{mutex};
    return changed.wait_for(lock, generous, [&] { return fds.size() >= n; });
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<unique_fd> fds;
  std::vector<socket_address> sources;
};

} // namespace

BOOST_AUTO_TEST_SUITE(strangers)

BOOST_AUTO_TEST_CASE(plain_talkers_and_noise_are_cut_off_and_logged_once) {
  kept_log lines;
  attacked s;
  std::mt19937 random{7};
  for (int round = 0; round < 60; ++round) {
    auto fd = tcp_to(s.address());
    if (round % 3 == 0)
      write_all(fd.get(), bytes_in("GET / HTTP/1.1\r\nHost: x\r\n\r\n"));
    else
      write_all(fd.get(), random_noise(random, 1 + random() % 3000));
    ::shutdown(fd.get(), SHUT_WR);
    BOOST_REQUIRE(is_closed_by_peer(fd.get()));
  }
  s.check_good_client_works();
  BOOST_TEST(s.opened() == 1u);
  BOOST_TEST(lines.count("refused a connection") == 1u);
  BOOST_TEST(lines.count("from=127.0.0.1 why=\"protocol_error: it does not speak TLS\"") == 1u);
}

BOOST_AUTO_TEST_CASE(who_leaves_without_a_word_is_not_refused) {
  attacked s;
  auto before = refusals();
  for (int i = 0; i < 20; ++i)
    tcp_to(s.address());
  s.check_newcomers_are_served();
  settle(s.loop);
  BOOST_TEST(refusals() == before);
}

BOOST_AUTO_TEST_CASE(records_that_lie_about_their_length_are_cut_off) {
  attacked s;
  std::mt19937 random{8};
  for (int round = 0; round < 100; ++round) {
    auto fd = tcp_to(s.address());
    auto noise = random_noise(random, 5 + random() % 2000);
    noise[0] = std::byte{0x16};
    noise[1] = std::byte{3};
    noise[2] = std::byte{static_cast<unsigned char>(1 + round % 3)};
    noise[3] = std::byte{0xff};
    noise[4] = std::byte{0xff};
    if (round % 2 == 0)
      noise[3] = std::byte{0};
    write_all(fd.get(), noise);
    ::shutdown(fd.get(), SHUT_WR);
    BOOST_REQUIRE(is_closed_by_peer(fd.get()));
  }
  s.check_good_client_works();
  BOOST_TEST(s.opened() == 1u);
}

BOOST_AUTO_TEST_CASE(a_wrong_secret_is_refused_however_often_it_comes_back) {
  kept_log lines;
  attacked s;
  auto wrong = make_tls();
  for (int round = 0; round < 50; ++round) {
    raw_member m{s.address(), "127.0.0.3", wrong};
    BOOST_TEST(!m.shake_tls());
  }
  s.check_good_client_works();
  BOOST_TEST(s.opened() == 1u);
  BOOST_TEST(
    lines.count("from=127.0.0.3 why=\"permission_denied: the other side has a different") == 1u);
  BOOST_TEST(lines.count("refused a connection") == 1u);
}

BOOST_AUTO_TEST_CASE(a_recorded_connection_played_back_does_not_get_through_the_handshake) {
  attacked s{short_time()};
  auto recorded = recorded_connection(s.address());
  auto before = s.opened();
  for (auto cut : {recorded.size(), recorded.size() / 2, recorded.size() - 40}) {
    auto fd = tcp_to(s.address());
    write_all(fd.get(), std::span{recorded}.first(cut));
    BOOST_TEST(is_closed_by_peer(fd.get()));
  }
  BOOST_TEST(s.opened() == before);
  s.check_good_client_works();
}

BOOST_AUTO_TEST_CASE(slow_talkers_end_in_time_and_block_nobody) {
  kept_log lines;
  attacked s{short_time()};
  std::vector<unique_fd> slow;
  auto flight = recorded_connection(s.address());
  for (int i = 0; i < 20; ++i)
    slow.push_back(tcp_to(s.address()));
  // Half of them never say a word.
  for (std::size_t at = 0; at < 20; ++at) {
    for (std::size_t i = 0; i < slow.size() / 2; ++i)
      write_all(slow[i].get(), std::span{flight}.subspan(at, 1));
    s.check_good_client_works();
  }
  s.check_newcomers_are_served();
  raw_member silent{s.address()};
  BOOST_REQUIRE(silent.shake_tls());
  for (auto& fd : slow)
    BOOST_TEST(is_closed_by_peer(fd.get()));
  BOOST_TEST((silent.read_to_end().code() == errc::deadline_exceeded));
  s.check_good_client_works();
  BOOST_TEST(lines.count("refused a connection") == 1u);
}

BOOST_AUTO_TEST_CASE(of_too_many_handshakes_the_oldest_gives_way) {
  listener_options few;
  few.handshakes_max = 8;
  attacked s{{}, few};
  std::vector<unique_fd> idle;
  for (int i = 0; i < 20; ++i)
    idle.push_back(tcp_to(s.address(), "127.0.1." + std::to_string(i + 1)));
  for (int i = 0; i < 12; ++i)
    BOOST_TEST(is_closed_by_peer(idle[static_cast<std::size_t>(i)].get()));
  pollfd last{idle.back().get(), POLLIN, 0};
  BOOST_TEST(::poll(&last, 1, 0) == 0);
  s.check_newcomers_are_served();
  s.check_good_client_works();
}

BOOST_AUTO_TEST_CASE(one_source_cannot_take_the_places_of_the_others) {
  listener_options few;
  few.handshakes_per_source_max = 4;
  attacked s{{}, few};
  auto other = tcp_to(s.address(), "127.0.0.9");
  std::vector<unique_fd> greedy;
  for (int i = 0; i < 40; ++i)
    greedy.push_back(tcp_to(s.address(), "127.0.0.8"));
  for (int i = 0; i < 36; ++i)
    BOOST_TEST(is_closed_by_peer(greedy[static_cast<std::size_t>(i)].get()));
  for (auto* fd : {&other, &greedy.back()}) {
    pollfd open{fd->get(), POLLIN, 0};
    BOOST_TEST(::poll(&open, 1, 0) == 0);
  }
  s.check_newcomers_are_served();
  s.check_good_client_works();
}

BOOST_AUTO_TEST_CASE(ten_thousand_connections_at_once_are_refused_within_bounds) {
  constexpr std::size_t connections = 10'000, sources = 200;
  if (!room_for_descriptors(connections + 1'000))
    return;
  kept_log lines;
  listener_options where;
  where.handshakes_max = 64;
  where.handshakes_per_source_max = 16;
  attacked s{short_time(), where};
  auto before = open_descriptors();
  std::size_t most = 0;
  // All of them stay at their end, whatever is said at ours.
  std::vector<unique_fd> held;
  for (std::size_t i = 0; i < connections; ++i) {
    auto fd = tcp_to(s.address(), "127.0.2." + std::to_string(i % sources + 1));
    if (i % 3 == 1)
      write_all(fd.get(), bytes_in("\x16\x03\x01\x02"));
    else if (i % 3 == 2)
      write_all(fd.get(), bytes_in("hello?"));
    held.push_back(std::move(fd));
    if (i % 1000 == 999) {
      s.check_good_client_works();
      most = std::max(most, open_descriptors() - held.size());
    }
  }
  s.check_newcomers_are_served();
  for (auto& fd : held)
    BOOST_TEST(is_closed_by_peer(fd.get()));
  settle(s.loop);
  // Besides the strangers there may be the newcomer on its way out.
  BOOST_TEST(most <= before + where.handshakes_max + 8);
  BOOST_TEST(lines.count("refused a connection") <= sources);
  BOOST_TEST(lines.count("from=127.0.2.1 ") == 1u);
}

BOOST_AUTO_TEST_CASE(bulk_streams_are_handed_on_with_their_first_bytes_or_refused) {
  kept_log lines;
  attacked none;
  auto refused = tcp_to(none.address());
  write_all(refused.get(), bytes_in("Millrace"));
  BOOST_TEST(is_closed_by_peer(refused.get()));
  settle(none.loop);
  BOOST_TEST(lines.count("a bulk stream, which this service does not take") == 1u);

  auto streams = std::make_shared<kept_streams>();
  listener_options where;
  where.streams = streams;
  where.handshakes_max = 2;
  attacked s{short_time(), where};
  std::vector<unique_fd> clients;
  for (int i = 0; i < 5; ++i) {
    clients.push_back(tcp_to(s.address()));
    write_all(clients.back().get(), bytes_in("Millrace"));
    BOOST_REQUIRE(streams->wait(clients.size()));
  }
  char room[16] = "";
  BOOST_TEST(::recv(streams->fds[0].get(), room, sizeof(room), 0) == 8);
  BOOST_TEST(std::string{room} == "Millrace");
  BOOST_TEST(streams->sources[0].host() == "127.0.0.1");
  // They are the driver's now: the listener's bounds and times do not end them.
  std::this_thread::sleep_for(400ms);
  write_all(streams->fds[1].get(), bytes_in("yes"));
  BOOST_TEST(::recv(clients[1].get(), room, sizeof(room), 0) == 3);
  s.check_good_client_works();
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(members_that_lie)

BOOST_AUTO_TEST_CASE(nobody_bears_the_identity_of_another) {
  auto victim = this_peer();
  child_process impostor{[&](auto& address, int) {
    raw_member m{address};
    auto h = raw_client::own_hello();
    h.id = victim;
    if (!m.shake_tls() || m.shake_hands(h))
      return 100;
    return static_cast<int>(m.refused.code());
  }};
  kept_log lines;
  attacked s;
  BOOST_TEST((s.good_channel->peer().id == victim));
  impostor.begin(s.address());
  BOOST_TEST(impostor.wait() == static_cast<int>(errc::permission_denied));
  s.check_good_client_works();
  BOOST_TEST(lines.count("the peer claims the identity of another process") == 1u);
}

BOOST_AUTO_TEST_CASE(a_proof_of_one_session_is_worth_nothing_in_another) {
  attacked s;
  raw_member first{s.address()};
  BOOST_REQUIRE(first.shake_tls());
  byte_buffer stolen;
  auto h = raw_client::own_hello();
  BOOST_REQUIRE(first.shake_hands(h, [&](auto& ours, auto& theirs) {
    return stolen = prove(handshake_side::connector, first.binding(), ours, theirs);
  }));
  raw_member again{s.address()};
  BOOST_REQUIRE(again.shake_tls());
  BOOST_TEST(!again.shake_hands(h, [&](auto&, auto&) { return stolen; }));
  BOOST_TEST((again.refused.code() == errc::permission_denied));
  // A member in between, with a session to each side, cannot pass a proof on either.
  raw_member between{s.address()};
  BOOST_REQUIRE(between.shake_tls());
  BOOST_TEST(!between.shake_hands(h, [&](auto& ours, auto& theirs) {
    return prove(handshake_side::connector, first.binding(), ours, theirs);
  }));
  BOOST_TEST((between.refused.code() == errc::permission_denied));
  raw_member reflected{s.address()};
  BOOST_REQUIRE(reflected.shake_tls());
  BOOST_TEST(!reflected.shake_hands(h, [&](auto& ours, auto& theirs) {
    return prove(handshake_side::acceptor, reflected.binding(), ours, theirs);
  }));
  s.check_good_client_works();
}

BOOST_AUTO_TEST_CASE(malformed_proofs_are_refused) {
  attacked s;
  for (std::size_t size : {0, 1, 32, 97, 98, 99, 4096}) {
    raw_member m{s.address()};
    BOOST_REQUIRE(m.shake_tls());
    BOOST_TEST(
      !m.shake_hands(raw_client::own_hello(), [&](auto&, auto&) { return bytes_of(size, 9); }));
    BOOST_TEST(
      (m.refused.code() == errc::protocol_error || m.refused.code() == errc::permission_denied));
  }
  s.check_good_client_works();
}

BOOST_AUTO_TEST_CASE(a_nodes_name_in_use_on_one_host_is_not_given_to_another) {
  auto as_node = [](const std::string& source) {
    return child_process{[source](auto& address, int ready) {
      raw_member m{address, source};
      auto h = raw_client::own_hello();
      h.name = "n1";
      if (!m.shake_tls())
        return 100;
      if (!m.shake_hands(h))
        return static_cast<int>(m.refused.code());
      say_ready(ready);
      while (true)
        ::pause();
    }};
  };
  auto first = as_node("127.0.0.21"), restarted = as_node("127.0.0.21");
  auto thief = as_node("127.0.0.22"), moved = as_node("127.0.0.22");
  attacked s;
  first.begin(s.address());
  BOOST_REQUIRE(first.wait_ready());
  thief.begin(s.address());
  BOOST_TEST(thief.wait() == static_cast<int>(errc::permission_denied));
  // The same host may: a node that was started again while its old channel lingers.
  restarted.begin(s.address());
  BOOST_TEST(restarted.wait_ready());
  first.signal(SIGKILL);
  restarted.signal(SIGKILL);
  BOOST_REQUIRE(s.handler->wait_closings(2));
  settle(s.loop);
  moved.begin(s.address());
  BOOST_TEST(moved.wait_ready());
  s.check_good_client_works();
}

BOOST_AUTO_TEST_CASE(frames_that_lie_about_their_length_close_the_channel) {
  attacked s;
  raw_member early{s.address()};
  BOOST_REQUIRE(early.shake_tls());
  early.write(encode_header({frame_kind::hello, 0, handshake_bytes_max + 1, 0}));
  BOOST_TEST((early.read_to_end().code() == errc::protocol_error));
  raw_member late{s.address()};
  BOOST_REQUIRE(late.shake_tls());
  BOOST_REQUIRE(late.shake_hands());
  late.write(encode_header({frame_kind::driver, 0, s.options.frame_bytes_max + 1, 0}));
  BOOST_TEST((late.read_to_end().code() == errc::protocol_error));
  raw_member with_fds{s.address()};
  BOOST_REQUIRE(with_fds.shake_tls());
  BOOST_REQUIRE(with_fds.shake_hands());
  with_fds.write(encode_header({frame_kind::driver, 2, 0, 0}));
  BOOST_TEST((with_fds.read_to_end().code() == errc::protocol_error));
  s.check_good_client_works();
}

BOOST_AUTO_TEST_CASE(what_comes_together_with_the_end_of_the_handshake_is_read_at_once) {
  kept_log lines;
  channel_options patient;
  patient.handshake_timeout_ms = 25000;
  attacked s{patient};
  held_member m{s.address()};
  m.shake_tls();
  m.write(encode_header({frame_kind::request, 0, 0, 0}));
  m.let_go();
  BOOST_TEST(is_closed_by_peer(m.fd.get()));
  s.check_good_client_works();
  BOOST_TEST(lines.count("out of the order of the handshake") == 1u);
}

BOOST_AUTO_TEST_CASE(garbled_records_end_that_channel_only) {
  attacked s;
  raw_member m{s.address()};
  BOOST_REQUIRE(m.shake_tls());
  BOOST_REQUIRE(m.shake_hands());
  BOOST_REQUIRE(s.handler->wait([&] { return s.handler->channels.size() == 2; }));
  std::mt19937 random{9};
  auto noise = random_noise(random, 105);
  const unsigned char head[]{0x17, 3, 3, 0, 100};
  std::memcpy(noise.data(), head, sizeof(head));
  write_all(m.fd(), noise);
  BOOST_REQUIRE(s.handler->wait_closings(1));
  BOOST_TEST((s.handler->closings[0].code() == errc::peer_lost));
  BOOST_TEST(s.handler->frame_count() == 0u);
  s.check_good_client_works();
}

BOOST_AUTO_TEST_CASE(a_member_that_asks_for_new_keys_and_never_reads_is_cut_off) {
  channel_options impatient;
  impatient.heartbeat_ms = 100;
  impatient.peer_timeout_ms = 1000;
  attacked s{impatient};
  raw_member m{s.address()};
  BOOST_REQUIRE(m.shake_tls());
  BOOST_REQUIRE(m.shake_hands());
  int small = 4096;
  ::setsockopt(m.fd(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
  BOOST_REQUIRE(s.handler->wait([&] { return s.handler->channels.size() == 2; }));
  // Every request has an answer, which stays unread: it fills the sockets, and then the service's
  // patience.
  auto until = steady_clock::now() + generous;
  while (steady_clock::now() < until && SSL_key_update(m.ssl(), SSL_KEY_UPDATE_REQUESTED) == 1 &&
         SSL_do_handshake(m.ssl()) == 1) {
  }
  BOOST_REQUIRE(s.handler->wait_closings(1));
  BOOST_TEST((s.handler->closings[0].code() == errc::peer_lost));
  s.check_good_client_works();
  s.check_newcomers_are_served();
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(refusal_logs)

BOOST_AUTO_TEST_CASE(a_source_gets_a_line_a_minute_that_counts_what_was_left_out) {
  refusal_log refusals;
  auto now = steady_clock::now();
  BOOST_TEST(refusals.note("a", "x", now).value() == "from=a why=\"x\"");
  for (int i = 1; i < 60; ++i)
    BOOST_TEST(!refusals.note("a", "x", now + std::chrono::seconds{i}).has_value());
  BOOST_TEST(refusals.note("b", "y", now + 30s).has_value());
  BOOST_TEST(refusals.note("a", "z", now + 60s).value() == "from=a why=\"z\" not_written=59");
  BOOST_TEST(!refusals.note("a", "z", now + 61s).has_value());
}

BOOST_AUTO_TEST_CASE(a_reason_that_was_left_out_is_told_with_the_next_line) {
  refusal_log refusals;
  auto now = steady_clock::now();
  BOOST_TEST(refusals.note("a", "scan", now).value() == "from=a why=\"scan\"");
  for (auto why : {"scan", "secret", "name", "scan"})
    BOOST_TEST(!refusals.note("a", why, now + 1s).has_value());
  BOOST_TEST(
    refusals.note("a", "scan", now + 60s).value() ==
    "from=a why=\"scan\" not_written=4 among_them=\"secret\"");
  BOOST_TEST(!refusals.note("a", "secret", now + 61s).has_value());
  BOOST_TEST(
    refusals.note("a", "secret", now + 120s).value() == "from=a why=\"secret\" not_written=1");
}

BOOST_AUTO_TEST_CASE(all_listeners_of_a_process_write_one_line_for_a_source) {
  kept_log lines;
  forget_refusals();
  auto before = refusals();
  const status why{errc::permission_denied, "no"};
  refused("10.1.2.3", why, "tls://a:1");
  refused("10.1.2.3", why);
  refused("10.1.2.4", why);
  for (int i = 0; i < 100; ++i)
    no_descriptors_left("unix:/s");
  BOOST_TEST(lines.count("refused a connection address=tls://a:1 from=10.1.2.3 why=") == 1u);
  BOOST_TEST(lines.count("refused a connection from=10.1.2.4 why=") == 1u);
  BOOST_TEST(lines.count("no descriptors left") == 1u);
  BOOST_TEST(lines.count("") == 3u);
  BOOST_TEST(refusals() - before == 103u);
}

BOOST_AUTO_TEST_CASE(a_source_is_an_address_or_half_of_an_ipv6_one) {
  auto source = [](const std::string& text) {
    return source_of(socket_address::parse(text).value());
  };
  BOOST_TEST(source("10.0.0.2:1") == "10.0.0.2");
  BOOST_TEST(source("[::ffff:10.0.0.2]:2") == "10.0.0.2");
  BOOST_TEST(source("[2001:db8::1]:1") == source("[2001:db8::ffff:2]:2"));
  BOOST_TEST(source("[2001:db8::1]:1") != source("[2001:db8:0:1::1]:1"));
}

BOOST_AUTO_TEST_CASE(sources_beyond_the_bound_share_a_line) {
  refusal_log refusals{4};
  auto now = steady_clock::now();
  std::size_t lines = 0;
  for (int i = 0; i < 1000; ++i)
    lines += refusals.note("s" + std::to_string(i), "x", now).has_value();
  BOOST_TEST(lines == 5u);
  // Old ones make room.
  lines = 0;
  for (int i = 0; i < 4; ++i)
    lines += refusals.note("t" + std::to_string(i), "x", now + 2min).has_value();
  BOOST_TEST(lines == 4u);
}

BOOST_AUTO_TEST_SUITE_END()
