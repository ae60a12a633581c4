// Tests rings of bytes in shared memory, and channels whose frames go through them.
// A raw client sets its ring up by itself, and then damages it.
#include "channel_support.hpp"

#include <millrace/net/channel/ring.hpp>

#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include <mutex>
#include <optional>
#include <random>
#include <thread>

using namespace millrace;
using namespace millrace::net;
using namespace millrace::net::testing;

namespace {

constexpr std::size_t small_ring = 4096;
constexpr auto connector = handshake_side::connector;
constexpr auto acceptor = handshake_side::acceptor;

// Both ends of one ring in this process, each with a mapping of its own.
struct two_ends {
  explicit two_ends(std::size_t bytes = small_ring) {
    auto made = ring_memory::make(bytes);
    BOOST_REQUIRE(made);
    ours = std::move(made->memory);
    file = std::move(made->file);
    auto adopted = ring_memory::adopt(file, bytes);
    BOOST_REQUIRE(adopted);
    theirs = std::move(*adopted);
    writer = ring_writer{ours->written_by(connector)};
    reader = ring_reader{theirs->written_by(connector)};
  }

  unique_fd file;
  std::unique_ptr<ring_memory> ours, theirs;
  ring_writer writer;
  ring_reader reader;
};

std::size_t write(ring_writer& to, std::span<const std::byte> bytes) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return to.write({&part, 1});
}

byte_buffer noise(std::size_t size, std::uint32_t seed = 1) {
  std::mt19937 random{seed};
  byte_buffer out(size);
  for (auto& b : out)
    b = static_cast<std::byte>(random());
  return out;
}

// Stands for the socket by which the sides give each other events.
struct event {
  unique_fd fd{::eventfd(0, EFD_CLOEXEC)};

  void give() const { BOOST_REQUIRE(::eventfd_write(fd.get(), 1) == 0); }
  bool wait() const {
    pollfd ready{fd.get(), POLLIN, 0};
    eventfd_t ignored = 0;
    return ::poll(&ready, 1, 30'000) == 1 && ::eventfd_read(fd.get(), &ignored) == 0;
  }
};

status refusal(const unique_fd& file, std::size_t ring_bytes = small_ring) {
  auto adopted = ring_memory::adopt(file, ring_bytes);
  return adopted ? status{} : adopted.error();
}

unique_fd file_of(std::size_t size, int seals, bool with_pages = true) {
  unique_fd file{::memfd_create("ring-test", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  BOOST_REQUIRE(::ftruncate(file.get(), static_cast<off_t>(size)) == 0);
  if (with_pages && size > 0)
    BOOST_REQUIRE(::fallocate(file.get(), 0, 0, static_cast<off_t>(size)) == 0);
  if (seals != 0)
    BOOST_REQUIRE(::fcntl(file.get(), F_ADD_SEALS, seals) == 0);
  return file;
}

} // namespace

BOOST_AUTO_TEST_SUITE(rings)

BOOST_AUTO_TEST_CASE(bytes_pass_in_order_and_no_event_is_lost) {
  two_ends ring;
  auto sent = noise(8 << 20);
  event data, room;
  std::thread other{[&] {
    std::mt19937 random{7};
    std::span<const std::byte> left{sent};
    while (!left.empty()) {
      if (!ring.writer.has_room()) {
        BOOST_REQUIRE(room.wait());
        continue;
      }
      left = left.subspan(
        write(ring.writer, left.first(std::min<std::size_t>(left.size(), 1 + random() % 6000))));
      if (ring.writer.must_tell_reader())
        data.give();
    }
  }};
  std::mt19937 random{8};
  byte_buffer arrived(sent.size());
  for (std::size_t size = 0; size < sent.size();) {
    auto wanted = std::min<std::size_t>(sent.size() - size, 1 + random() % 6000);
    auto got = ring.reader.read(std::span{arrived}.subspan(size, wanted));
    if (ring.reader.must_tell_writer())
      room.give();
    size += got;
    if (got == 0 && ring.reader.ask_for_event())
      BOOST_REQUIRE(data.wait());
  }
  other.join();
  BOOST_TEST(!ring.reader.raised());
  BOOST_TEST((arrived == sent));
}

BOOST_AUTO_TEST_CASE(a_full_ring_takes_no_more) {
  two_ends ring;
  BOOST_TEST(write(ring.writer, noise(small_ring + 1)) == small_ring);
  BOOST_TEST(!ring.writer.has_room());
  byte_buffer out(small_ring);
  BOOST_TEST(ring.reader.read(std::span{out}.first(100)) == 100u);
  BOOST_TEST(!ring.reader.must_tell_writer()); // too little room for an event
  BOOST_TEST(ring.reader.read(out) == small_ring - 100);
  BOOST_TEST(ring.reader.must_tell_writer());
  BOOST_TEST(!ring.reader.must_tell_writer());
  BOOST_TEST(ring.writer.has_room());
}

BOOST_AUTO_TEST_CASE(counts_that_cannot_be_break_the_ring) {
  std::mt19937_64 random{9};
  for (int i = 0; i < 1000; ++i) {
    two_ends ring;
    BOOST_TEST_REQUIRE(write(ring.writer, noise(3000)) == 3000u);
    auto lie = random() >> (random() % 64);
    auto* words = ring.theirs->written_by(connector).words;
    words->written = lie;
    words->read = lie;
    byte_buffer out(2 * small_ring);
    auto got = ring.reader.read(out);
    BOOST_TEST(got == (lie <= small_ring ? lie : 0));
    BOOST_TEST(ring.reader.broken() == (lie > small_ring));
    words->read = lie;
    auto written = write(ring.writer, noise(small_ring));
    BOOST_TEST(ring.writer.broken() == (lie > 3000));
    BOOST_TEST(written == (lie > 3000 ? 0 : small_ring - 3000 + lie));
  }
}

BOOST_AUTO_TEST_CASE(each_side_learns_whether_the_other_one_polls_on_its_core) {
  two_ends ring;
  auto* forth = ring.theirs->written_by(connector).words;
  auto* back = ring.theirs->written_by(acceptor).words;
  ring_reader ours{ring.ours->written_by(acceptor), ring.ours->written_by(connector).words};
  ring_reader theirs{ring.theirs->written_by(connector), back};
  BOOST_TEST(!ours.shares_core(3)); // nothing is known of the other side
  BOOST_TEST(theirs.shares_core(3));
  BOOST_TEST(ours.shares_core(3));
  BOOST_TEST(!theirs.shares_core(4));
  BOOST_TEST(!ours.shares_core(3));
  BOOST_TEST(forth->reader_core == 4u);
  BOOST_TEST(back->reader_core == 3u);
  BOOST_TEST(!ring.reader.shares_core(4)); // it does not see the way back
}

BOOST_AUTO_TEST_CASE(files_that_are_no_ring_are_refused) {
  constexpr auto sealed = F_SEAL_SHRINK | F_SEAL_GROW;
  BOOST_TEST(refusal(file_of(4096 + 2 * small_ring, sealed)).ok());
  BOOST_TEST((refusal(file_of(4096 + 2 * small_ring, 0)).code() == errc::protocol_error));
  BOOST_TEST((refusal(file_of(4096 + 2 * small_ring, F_SEAL_GROW)).code() == errc::protocol_error));
  BOOST_TEST(
    (refusal(file_of(4096 + 2 * small_ring, sealed, false)).code() == errc::protocol_error));
  for (std::size_t size : {0u, 1u, 4096u, 8192u, 12287u, 12289u, 4096u + 6 * 4096u})
    BOOST_TEST((refusal(file_of(size, sealed)).code() == errc::protocol_error));
  BOOST_TEST((refusal(file_of(4096 + 4 * small_ring, sealed)).code() == errc::no_space));
  BOOST_TEST((refusal(unique_fd{::open("/dev/null", O_RDWR)}).code() == errc::protocol_error));
}

BOOST_AUTO_TEST_SUITE_END()

namespace {

// No heartbeat wakes a side that has missed an event.
channel_options quiet_with_ring(std::uint64_t bytes) {
  channel_options o;
  o.ring_bytes = bytes;
  o.heartbeat_ms = 3'600'000;
  o.peer_timeout_ms = 36'000'000;
  return o;
}

// Sends frames back, with their descriptors.
void echo(channel& c, const frame& f) {
  std::vector<int> fds;
  for (auto& fd : f.fds)
    fds.push_back(fd.get());
  while (c.send(frame_kind::driver, f.correlation, f.body, fds).code() == errc::busy)
    std::this_thread::yield();
}

// Large frames, small ones and some with descriptors, to a service that sends them back.
void exchange_frames(std::uint64_t client_ring, std::uint64_t service_ring) {
  service s{quiet_with_ring(service_ring)};
  s.handler->react = echo;
  auto own_loop = make_loop();
  auto client = std::make_shared<recorder>();
  auto c = connect_to(own_loop, s.address(), quiet_with_ring(client_ring), client);
  BOOST_REQUIRE(c);
  std::mt19937 random{11};
  unique_fd file{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
  constexpr std::size_t frames = 600;
  for (std::size_t i = 0; i < frames; ++i) {
    auto size = i % 50 == 0 ? 1u << 20 : random() % 9000;
    std::vector<int> fds(i % 7 == 0 ? 1 + i % 3 : 0, file.get());
    auto body = noise(size, static_cast<std::uint32_t>(i));
    while ((*c)->send(frame_kind::driver, i, body, fds).code() == errc::busy)
      std::this_thread::yield();
  }
  BOOST_REQUIRE(client->wait_frames(frames));
  for (std::size_t i = 0; i < frames; ++i) {
    BOOST_TEST_REQUIRE(client->frames[i].correlation == i);
    BOOST_TEST_REQUIRE(client->frames[i].fds.size() == (i % 7 == 0 ? 1 + i % 3 : 0));
    auto size = client->frames[i].body.size();
    BOOST_TEST_REQUIRE((client->frames[i].body == noise(size, static_cast<std::uint32_t>(i))));
  }
  (*c)->close({});
  BOOST_TEST(s.handler->wait_closings(1));
  BOOST_TEST(client->wait_closings(1));
  own_loop->stop();
}

// What a service writes into a ring. The socket tells when there is more, and when it is over.
class ring_end : public raw_end {
public:
  explicit ring_end(const raw_client& socket) : socket_(socket) {}

  ring_reader reader;

private:
  bool put(std::span<const std::byte>) override { return false; }
  std::size_t get(std::span<std::byte> room) override {
    auto ended = false;
    auto got = reader.read(room);
    while (got == 0 && !ended) {
      if (reader.ask_for_event()) {
        pollfd ready{socket_.fd(), POLLIN, 0};
        BOOST_REQUIRE(::poll(&ready, 1, 30'000) == 1);
        std::array<char, 64> events{};
        ended = ::recv(socket_.fd(), events.data(), events.size(), 0) <= 0;
      }
      got = reader.read(room);
    }
    return got;
  }

  const raw_client& socket_;
};

// The threads of this one, and those that they start, have one core.
class on_one_core {
public:
  on_one_core() {
    BOOST_REQUIRE(::sched_getaffinity(0, sizeof before_, &before_) == 0);
    std::size_t first = 0;
    while (!CPU_ISSET(first, &before_))
      ++first;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    BOOST_REQUIRE(::sched_setaffinity(0, sizeof one, &one) == 0);
  }
  ~on_one_core() { ::sched_setaffinity(0, sizeof before_, &before_); }
  on_one_core(const on_one_core&) = delete;
  on_one_core& operator=(const on_one_core&) = delete;

private:
  cpu_set_t before_{};
};

// Frames go there and back one by one, so that each side waits for each frame of the other one,
// polling or asleep. Nothing else happens that could wake a side that has missed a frame.
void exchange_one_by_one(std::uint32_t poll_us, std::uint64_t rounds) {
  auto quiet = quiet_with_ring(64 << 10);
  service s{quiet};
  s.handler->react = echo;
  auto own_loop = make_loop(poll_us);
  auto client = std::make_shared<recorder>();
  std::mutex mutex;
  std::optional<promise<std::uint64_t>> answer;
  client->react = [&](channel&, const frame& f) {
    std::unique_lock lock{mutex};
    auto asked = *answer;
    lock.unlock();
    asked.set(f.correlation);
  };
  auto c = connect_to(own_loop, s.address(), quiet, client);
  BOOST_REQUIRE(c);
  for (std::uint64_t i = 0; i < rounds; ++i) {
    std::unique_lock lock{mutex};
    auto f = answer.emplace(own_loop).get_future();
    lock.unlock();
    BOOST_REQUIRE((*c)->send(frame_kind::driver, i, noise(100)).ok());
    BOOST_REQUIRE(f.wait_for(generous));
    BOOST_TEST_REQUIRE(f.get() == i);
  }
  own_loop->stop();
}

// A client that speaks through a ring that it may write anything into.
class ring_client : public raw_client {
public:
  explicit ring_client(const std::string& address) : raw_client(address) {
    BOOST_REQUIRE(shake_hands());
  }

  void offer(std::span<const int> fds) {
    auto head = encode_header({frame_kind::ring, static_cast<std::uint8_t>(fds.size()), 0, 0});
    iovec part{head.data(), head.size()};
    BOOST_REQUIRE(send_with_fds(fd(), {&part, 1}, fds).size_bytes == head.size());
  }

  void begin() {
    auto made = ring_memory::make(64 << 10);
    BOOST_REQUIRE(made);
    memory = std::move(made->memory);
    auto file = made->file.get();
    offer({&file, 1});
    auto taken = read();
    BOOST_REQUIRE((taken && taken->kind == frame_kind::ring));
    write(frame_kind::ring, {});
    writer = ring_writer{memory->written_by(connector)};
    answers.reader = ring_reader{memory->written_by(acceptor)};
  }

  void wake() { BOOST_REQUIRE(::send(fd(), "", 1, MSG_NOSIGNAL) == 1); }

  void send_frame(frame_kind kind, std::uint8_t fds = 0) {
    auto head = encode_header({kind, fds, 0, 77});
    iovec part{head.data(), head.size()};
    writer.write({&part, 1});
    wake();
  }

  std::unique_ptr<ring_memory> memory;
  ring_writer writer;
  ring_end answers{*this};
};

// A service, and a client that must notice nothing of another one's misdeeds.
struct attacked : service {
  attacked() : good(std::make_shared<recorder>()) {
    handler->react = echo;
    good_channel = connect(good);
  }

  void check_good_client_works() {
    auto before = good->frame_count();
    BOOST_TEST(good_channel->send(frame_kind::driver, 7, noise(1000)).ok());
    BOOST_TEST(good->wait_frames(before + 1));
    BOOST_TEST(good_channel->is_open());
  }

  std::shared_ptr<recorder> good;
  std::shared_ptr<channel> good_channel;
};

} // namespace

BOOST_AUTO_TEST_SUITE(channels_with_rings)

BOOST_AUTO_TEST_CASE(frames_larger_than_the_ring_pass_whole) { exchange_frames(4096, 4096); }
BOOST_AUTO_TEST_CASE(frames_pass_through_a_ring_of_the_usual_size) {
  exchange_frames(512 << 10, 512 << 10);
}
BOOST_AUTO_TEST_CASE(without_a_ring_frames_pass_through_the_socket) {
  exchange_frames(0, 512 << 10);
  exchange_frames(512 << 10, 0);
  exchange_frames(1 << 20, 4096); // larger than the service allows
}

// Nothing else happens that could wake the writer: there is no answer and no heartbeat.
BOOST_AUTO_TEST_CASE(one_frame_larger_than_the_ring_needs_no_other_event) {
  auto quiet = quiet_with_ring(4096);
  service s{quiet};
  auto own_loop = make_loop(0);
  auto c = connect_to(own_loop, s.address(), quiet, std::make_shared<recorder>());
  BOOST_REQUIRE(c);
  BOOST_TEST((*c)->send(frame_kind::driver, 1, noise(1 << 20)).ok());
  BOOST_REQUIRE(s.handler->wait_frames(1));
  BOOST_TEST((s.handler->frames[0].body == noise(1 << 20)));
  own_loop->stop();
}

BOOST_AUTO_TEST_CASE(a_ring_that_was_set_up_is_used) {
  attacked s;
  ring_client c{s.address()};
  c.begin();
  c.send_frame(frame_kind::driver);
  auto back = c.answers.read();
  BOOST_REQUIRE(back);
  BOOST_TEST((back->kind == frame_kind::driver && back->correlation == 77));
  // What the service says before it closes is in the ring, too.
  c.send_frame(frame_kind::hello);
  BOOST_TEST((c.answers.read_to_end().code() == errc::protocol_error));
  s.check_good_client_works();
}

BOOST_AUTO_TEST_CASE(a_peer_that_scribbles_over_the_ring_harms_only_itself) {
  attacked s;
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    ring_client c{s.address()};
    c.begin();
    c.send_frame(frame_kind::driver);
    std::mt19937_64 random{seed};
    auto place = c.memory->written_by(seed % 2 ? connector : acceptor);
    for (int i = 0; i < 20; ++i) {
      (random() % 2 ? place.words->written : place.words->read) = random() >> (random() % 64);
      (random() % 2 ? place.words->reader_sleeps : place.words->writer_waits) =
        static_cast<std::uint32_t>(random());
      place.words->reader_core = static_cast<std::uint32_t>(random() >> (random() % 64));
      place.bytes[random() % place.bytes.size()] = static_cast<std::byte>(random());
      if (::send(c.fd(), "", 1, MSG_NOSIGNAL) != 1)
        break;
    }
  }
  s.check_good_client_works();
}

BOOST_AUTO_TEST_CASE(a_lie_about_the_core_loses_no_frame) {
  attacked s;
  ring_client c{s.address()};
  c.begin();
  std::mt19937 random{13};
  for (int i = 0; i < 200; ++i) {
    for (auto side : {connector, acceptor})
      c.memory->written_by(side).words->reader_core =
        static_cast<std::uint32_t>(i % 4 == 0 ? random() : random() % 8);
    c.send_frame(frame_kind::driver);
    auto back = c.answers.read();
    BOOST_REQUIRE(back);
    BOOST_TEST_REQUIRE(back->correlation == 77u);
  }
  s.check_good_client_works();
}

BOOST_AUTO_TEST_CASE(no_wake_up_is_lost_whether_the_sides_poll_or_sleep) {
  for (auto poll_us : {0u, 2u, 100u})
    exchange_one_by_one(poll_us, 1000);
}

BOOST_AUTO_TEST_CASE(two_sides_that_poll_on_one_core_let_each_other_run) {
  on_one_core pinned;
  for (auto poll_us : {0u, 2u, 100u})
    exchange_one_by_one(poll_us, 1000);
}

BOOST_AUTO_TEST_CASE(descriptors_must_belong_to_frames) {
  attacked s;
  auto before = open_descriptors();
  {
    ring_client missing{s.address()};
    missing.begin();
    missing.send_frame(frame_kind::driver, 2);
    BOOST_TEST((missing.answers.read_to_end().code() == errc::protocol_error));
    ring_client flood{s.address()};
    flood.begin();
    std::vector<int> many(60, 0);
    std::byte byte{};
    iovec part{&byte, 1};
    auto sent = 0;
    while (sent < 100 && send_with_fds(flood.fd(), {&part, 1}, many).error_number == 0)
      ++sent;
    BOOST_TEST(s.handler->wait_closings(2));
  }
  s.check_good_client_works();
  for (int i = 0; i < 100 && open_descriptors() > before; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds{10});
  BOOST_TEST(open_descriptors() <= before);
}

BOOST_AUTO_TEST_CASE(frames_about_rings_out_of_turn_end_the_connection) {
  attacked s;
  ring_client unasked{s.address()};
  unasked.offer({});
  BOOST_TEST((unasked.read_to_end().code() == errc::protocol_error));
  ring_client twice{s.address()};
  twice.begin();
  twice.send_frame(frame_kind::ring);
  BOOST_TEST((twice.answers.read_to_end().code() == errc::protocol_error));
  ring_client two_files{s.address()};
  two_files.offer(std::vector<int>{0, 0});
  BOOST_TEST((two_files.read_to_end().code() == errc::protocol_error));
  ring_client no_ring{s.address()};
  no_ring.offer(std::vector<int>{no_ring.fd()});
  BOOST_TEST((no_ring.read_to_end().code() == errc::protocol_error));
  s.check_good_client_works();
}

BOOST_AUTO_TEST_SUITE_END()
