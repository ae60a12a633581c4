// Tests peers that break the rules. Their connection ends, while the service and its other
// connections live.
// Uses a raw client that speaks byte by byte.
#include "channel_support.hpp"

#include <fstream>
#include <random>
#include <thread>

using namespace millrace;
using namespace millrace::net;
using namespace millrace::net::testing;
using namespace std::chrono_literals;

namespace {

/// A service with one well-behaved client that must not notice anything.
struct attacked : service {
  explicit attacked(channel_options o = quick(), listener_options w = {})
    : service(std::move(o), std::move(w)), good(std::make_shared<recorder>()),
      good_channel(connect(good)) {
    handler->react = [](channel& c, const frame& f) {
      if (f.kind == frame_kind::driver)
        BOOST_TEST(c.send(frame_kind::driver, f.correlation, f.body).ok());
    };
    BOOST_REQUIRE(handler->wait([&] { return handler->channels.size() == 1; }));
  }

  static channel_options quick() {
    channel_options o;
    o.requests_max = 4;
    return o;
  }

  void check_good_client_works() {
    auto before = good->frame_count();
    BOOST_TEST(good_channel->send(frame_kind::driver, 7, bytes_of(1000)).ok());
    BOOST_TEST(good->wait_frames(before + 1));
    BOOST_TEST(good->closings.empty());
    BOOST_TEST(good_channel->is_open());
  }

  std::shared_ptr<recorder> good;
  std::shared_ptr<channel> good_channel;
};

std::size_t resident_bytes() {
  std::ifstream statm{"/proc/self/statm"};
  std::size_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * 4096;
}

void send_fds(int socket, std::span<const std::byte> bytes, std::span<const int> fds) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  BOOST_REQUIRE(send_with_fds(socket, {&part, 1}, fds).size_bytes == bytes.size());
}

} // namespace

BOOST_AUTO_TEST_SUITE(hostile_peers)

BOOST_AUTO_TEST_CASE(random_bytes_close_the_connection) {
  attacked s;
  std::mt19937 random{42};
  for (int round = 0; round < 100; ++round) {
    raw_client c{s.address()};
    byte_buffer noise(1 + random() % 5000);
    for (auto& b : noise)
      b = static_cast<std::byte>(random());
    c.write(noise);
    ::shutdown(c.fd(), SHUT_WR);
    BOOST_TEST((c.read_to_end().code() != errc::internal));
  }
  BOOST_TEST(s.handler->channels.size() == 1u);
  s.check_good_client_works();
}

BOOST_AUTO_TEST_CASE(random_bytes_after_a_handshake_close_the_connection) {
  attacked s;
  std::mt19937 random{43};
  for (int round = 0; round < 50; ++round) {
    raw_client c{s.address()};
    BOOST_REQUIRE(c.shake_hands());
    // Starts as a frame does, and goes wrong later.
    c.write(frame_kind::driver, bytes_of(100));
    byte_buffer noise(24 + random() % 5000);
    for (auto& b : noise)
      b = static_cast<std::byte>(random());
    c.write(noise);
    BOOST_TEST((c.read_to_end().code() == errc::protocol_error));
  }
  s.check_good_client_works();
}

BOOST_AUTO_TEST_CASE(oversized_frames_close_the_connection_before_their_body_is_read) {
  attacked s;
  raw_client early{s.address()};
  early.write(encode_header({frame_kind::hello, 0, handshake_bytes_max + 1, 0}));
  BOOST_TEST((early.read_to_end().code() == errc::protocol_error));
  raw_client late{s.address()};
  BOOST_REQUIRE(late.shake_hands());
  late.write(encode_header({frame_kind::driver, 0, s.options.frame_bytes_max + 1, 0}));
  BOOST_TEST((late.read_to_end().code() == errc::protocol_error));
  s.check_good_client_works();
}

BOOST_AUTO_TEST_CASE(a_frame_cut_off_ends_with_the_connection) {
  attacked s;
  {
    raw_client c{s.address()};
    BOOST_REQUIRE(c.shake_hands());
    c.write(encode_header({frame_kind::driver, 0, 1000, 0}));
    c.write(bytes_of(999));
  }
  BOOST_REQUIRE(s.handler->wait_closings(1));
  BOOST_TEST((s.handler->closings[0].code() == errc::peer_lost));
  BOOST_TEST(s.handler->frame_count() == 0u);
  s.check_good_client_works();
}

BOOST_AUTO_TEST_CASE(a_recorded_connection_played_back_is_refused) {
  attacked s;
  byte_buffer recorded;
  {
    raw_client c{s.address()};
    BOOST_REQUIRE(c.shake_hands());
    c.write(frame_kind::driver, bytes_of(10), 666);
    BOOST_REQUIRE(s.handler->wait_frames(1));
    recorded = c.sent;
  }
  raw_client replayer{s.address()};
  replayer.write(recorded);
  BOOST_TEST((replayer.read_to_end().code() == errc::permission_denied));
  BOOST_TEST(s.handler->channels.size() == 2u);
  BOOST_TEST(s.handler->frame_count() == 1u);
  s.check_good_client_works();
}

BOOST_AUTO_TEST_CASE(a_second_hello_closes_the_connection) {
  attacked s;
  raw_client open{s.address()};
  BOOST_REQUIRE(open.shake_hands());
  open.write(frame_kind::hello, encode(raw_client::own_hello()));
  BOOST_TEST((open.read_to_end().code() == errc::protocol_error));
  raw_client early{s.address()};
  early.write(frame_kind::hello, encode(raw_client::own_hello()));
  early.write(frame_kind::hello, encode(raw_client::own_hello()));
  BOOST_TEST((early.read_to_end().code() == errc::protocol_error));
  s.check_good_client_works();
}

BOOST_AUTO_TEST_CASE(nothing_but_the_handshake_passes_before_its_end) {
  attacked s;
  for (auto kind : {frame_kind::request, frame_kind::ping, frame_kind::proof, frame_kind::driver}) {
    raw_client c{s.address()};
    c.write(kind, bytes_of(32));
    BOOST_TEST((c.read_to_end().code() == errc::protocol_error));
  }
  raw_client c{s.address()};
  c.write(frame_kind::hello, encode(raw_client::own_hello()));
  c.write(frame_kind::request, bytes_of(32));
  BOOST_TEST((c.read_to_end().code() == errc::protocol_error));
  BOOST_TEST(s.handler->channels.size() == 1u);
}

BOOST_AUTO_TEST_CASE(slow_handshakes_end_in_time_and_block_nobody) {
  channel_options short_time;
  short_time.handshake_timeout_ms = 300;
  attacked s{short_time};
  raw_client silent{s.address()};
  raw_client slow{s.address()};
  auto bytes = encode_header({frame_kind::hello, 0, 100, 0});
  for (auto& b : bytes) {
    slow.write({&b, 1});
    s.check_good_client_works();
  }
  BOOST_TEST(s.connect(std::make_shared<recorder>())->is_open());
  BOOST_TEST((silent.read_to_end().code() == errc::deadline_exceeded));
  BOOST_TEST((slow.read_to_end().code() == errc::deadline_exceeded));
  s.check_good_client_works();
}

BOOST_AUTO_TEST_CASE(requests_beyond_the_grant_close_the_connection) {
  attacked s;
  raw_client c{s.address()};
  BOOST_REQUIRE(c.shake_hands());
  for (std::uint64_t i = 0; i < 5; ++i)
    c.write(frame_kind::request, {}, i);
  BOOST_TEST((c.read_to_end().code() == errc::protocol_error));
  BOOST_TEST(s.handler->frame_count() == 4u);
  s.check_good_client_works();
}

BOOST_AUTO_TEST_CASE(descriptors_nobody_announced_are_closed_with_the_connection) {
  attacked s;
  auto before = open_descriptors();
  std::array<int, 3> fds{0, 0, 0};
  {
    raw_client unannounced{s.address()};
    BOOST_REQUIRE(unannounced.shake_hands());
    auto head = encode_header({frame_kind::driver, 0, 0, 0});
    send_fds(unannounced.fd(), head, fds);
    BOOST_TEST((unannounced.read_to_end().code() == errc::protocol_error));
    raw_client missing{s.address()};
    BOOST_REQUIRE(missing.shake_hands());
    missing.write(encode_header({frame_kind::driver, 2, 0, 0}));
    BOOST_TEST((missing.read_to_end().code() == errc::protocol_error));
    raw_client too_many{s.address()};
    BOOST_REQUIRE(too_many.shake_hands());
    std::vector<int> flood(60, 0);
    send_fds(too_many.fd(), encode_header({frame_kind::driver, 60, 0, 0}), flood);
    BOOST_TEST((too_many.read_to_end().code() == errc::protocol_error));
    raw_client early{s.address()};
    auto half = std::span{head}.first(10);
    send_fds(early.fd(), half, flood);
    BOOST_TEST((early.read_to_end().code() == errc::protocol_error));
  }
  BOOST_REQUIRE(s.handler->wait_closings(3));
  s.check_good_client_works();
  BOOST_TEST(open_descriptors() <= before);
}

BOOST_AUTO_TEST_CASE(unknown_later_kinds_are_skipped_and_unknown_replies_passed_up) {
  attacked s;
  raw_client c{s.address()};
  BOOST_REQUIRE(c.shake_hands());
  c.write(static_cast<frame_kind>(77), bytes_of(5000));
  c.write(frame_kind::reply, bytes_of(5), 12345);
  BOOST_REQUIRE(s.handler->wait_frames(1));
  BOOST_TEST((s.handler->frames[0].kind == frame_kind::reply));
  BOOST_TEST(s.handler->frames[0].correlation == 12345u);
}

BOOST_AUTO_TEST_CASE(memory_follows_what_is_sent_not_what_is_announced) {
  attacked s;
  std::vector<std::unique_ptr<raw_client>> clients;
  auto before = resident_bytes();
  for (int i = 0; i < 100; ++i) {
    clients.push_back(std::make_unique<raw_client>(s.address()));
    BOOST_REQUIRE(clients.back()->shake_hands());
    clients.back()->write(encode_header({frame_kind::driver, 0, s.options.frame_bytes_max, 0}));
    clients.back()->write(bytes_of(20000));
  }
  s.check_good_client_works();
  // Announced: 1.6 GB.
  BOOST_TEST(resident_bytes() < before + (100u << 20));
}

// A process begins large frames on many connections and ends none of them.
BOOST_AUTO_TEST_CASE(frames_that_never_end_leave_room_for_those_of_another_process) {
  constexpr std::uint32_t body_bytes = 1 << 20;
  auto options = attacked::quick();
  options.peer_timeout_ms = 600'000; // the greedy one says nothing more
  options.buffers = std::make_shared<lent_places>(8 * body_bytes, "bytes (channel.buffers_max)");
  child_process greedy{[](auto& address, int ready) {
    std::vector<std::unique_ptr<raw_client>> all;
    for (int i = 0; i < 20; ++i) {
      all.push_back(std::make_unique<raw_client>(address));
      if (!all.back()->shake_hands())
        return 1;
      all.back()->write(encode_header({frame_kind::driver, 0, body_bytes, 0}));
    }
    say_ready(ready);
    return ::pause();
  }};
  child_process other{[](auto& address, int) {
    raw_client c{address};
    if (!c.shake_hands() || !c.write(frame_kind::driver, bytes_of(body_bytes)))
      return 1;
    auto echoed = c.read();
    return echoed && echoed->body == bytes_of(body_bytes) ? 0 : 2;
  }};
  attacked s{options};
  greedy.begin(s.address());
  BOOST_REQUIRE(greedy.wait_ready());
  BOOST_REQUIRE(s.handler->wait_closings(16));
  for (auto& why : s.handler->closings)
    BOOST_TEST((why.code() == errc::busy), why.to_string());
  BOOST_TEST(options.buffers->taken() == 4 * (body_bytes + frame_header_bytes));
  other.begin(s.address());
  BOOST_TEST(other.wait() == 0);
  s.check_good_client_works();
  greedy.signal(SIGKILL);
  BOOST_REQUIRE(s.handler->wait_closings(21));
}

BOOST_AUTO_TEST_CASE(a_peer_that_never_reads_cannot_make_pongs_pile_up) {
  attacked s;
  raw_client c{s.address()};
  BOOST_REQUIRE(c.shake_hands());
  auto ping = encode_header({frame_kind::ping, 0, 0, 0});
  byte_buffer many;
  for (int i = 0; i < 1000; ++i)
    many.insert(many.end(), ping.begin(), ping.end());
  auto before = resident_bytes();
  for (int i = 0; i < 500; ++i)
    BOOST_REQUIRE(c.write(many));
  s.check_good_client_works();
  BOOST_TEST(resident_bytes() < before + (50u << 20));
}

BOOST_AUTO_TEST_CASE(other_versions_are_refused_with_both_ranges_named) {
  attacked s;
  auto later = raw_client::own_hello();
  later.version_min = 7;
  later.version_max = 9;
  raw_client c{s.address()};
  BOOST_TEST(!c.shake_hands(later));
  raw_client again{s.address()};
  again.write(frame_kind::hello, encode(later));
  auto why = again.read_to_end();
  BOOST_TEST((why.code() == errc::unsupported_version));
  BOOST_TEST(why.detail().find("7 to 9") != std::string::npos);
  BOOST_TEST(why.detail().find("1 to 2") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_service_of_another_version_is_named_to_the_connecting_side) {
  temp_dir dir;
  auto address = "unix:" + dir.path + "/other.sock";
  auto where = parse_unix_address(address);
  unique_fd listening{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  BOOST_REQUIRE(
    ::bind(listening.get(), reinterpret_cast<const sockaddr*>(&*where), sizeof(*where)) == 0);
  BOOST_REQUIRE(::listen(listening.get(), 5) == 0);
  std::thread service{[&] {
    unique_fd fd{::accept(listening.get(), nullptr, nullptr)};
    auto h = raw_client::own_hello();
    h.version_min = h.version_max = 3;
    auto body = encode(h);
    auto head = encode_header({frame_kind::hello, 0, static_cast<std::uint32_t>(body.size()), 0});
    iovec parts[]{{head.data(), head.size()}, {body.data(), body.size()}};
    send_with_fds(fd.get(), parts, {});
    char byte = 0;
    while (::recv(fd.get(), &byte, 1, 0) > 0) {
    }
  }};
  auto loop = make_loop();
  auto c = connect_to(loop, address, {}, std::make_shared<recorder>());
  BOOST_REQUIRE(!c);
  BOOST_TEST((c.error().code() == errc::unsupported_version));
  BOOST_TEST(c.error().detail().find("3 to 3") != std::string::npos);
  service.join();
  loop->stop();
}

BOOST_AUTO_TEST_CASE(an_identity_in_use_by_another_process_is_refused) {
  auto id = this_peer();
  child_process impostor{[&](auto& address, int) {
    raw_client c{address};
    auto h = raw_client::own_hello();
    h.id = id;
    auto ours = encode(h);
    c.write(frame_kind::hello, ours);
    auto theirs = c.read();
    c.write(frame_kind::proof, prove(handshake_side::connector, {}, ours, theirs->body));
    return static_cast<int>(c.read_to_end().code());
  }};
  attacked s;
  impostor.begin(s.address());
  BOOST_TEST(impostor.wait() == static_cast<int>(errc::permission_denied));
  s.check_good_client_works();
}

// Shares are counted by what the kernel says of a process, not by the ids that it announces.
BOOST_AUTO_TEST_CASE(a_process_has_one_share_whatever_it_calls_itself) {
  peer_info one;
  one.id = random_id<peer_id>();
  one.pid = static_cast<std::uint32_t>(::getppid());
  one.uid = 12345;
  auto again = one;
  again.id = this_peer();
  BOOST_TEST((party_of(one) == party_of(again)));
  BOOST_TEST(!party_of(again).process.is_nil());
  again.pid = static_cast<std::uint32_t>(::getpid());
  BOOST_TEST(party_of(again).process.is_nil());
  again.pid = 1;
  BOOST_TEST((party_of(one).process != party_of(again).process));
}

BOOST_AUTO_TEST_SUITE_END()
