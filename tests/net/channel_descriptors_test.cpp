// Tests a channel whose descriptors the system refuses, because too many are on their way to other
// processes.
#include "channel_support.hpp"

#include <millrace/net/channel/connection.hpp>
#include <millrace/net/channel/unix_stream.hpp>

#include <atomic>
#include <cerrno>
#include <thread>

using namespace millrace;
using namespace millrace::net;
using namespace millrace::net::testing;

namespace {

// As the system does it to users without privileges; a test that runs as root cannot bring it
// about.
class reluctant_stream : public byte_stream {
public:
  struct mood {
    std::atomic<bool> refuses = false;
    std::atomic<int> refusals = 0;
  };

  reluctant_stream(unique_fd fd, std::shared_ptr<mood> m)
    : inner_(make_unix_stream(handshake_side::connector, std::move(fd))), mood_(std::move(m)) {}

  int fd() const noexcept override { return inner_->fd(); }
  void close() noexcept override { inner_->close(); }
  io_outcome receive(std::span<std::byte> room, std::vector<unique_fd>& fds) override {
    return inner_->receive(room, fds);
  }
  bool has_unread() const override { return inner_->has_unread(); }
  io_outcome send(std::span<const iovec> parts, std::span<const int> fds) override {
    if (fds.empty() || !mood_->refuses)
      return inner_->send(parts, fds);
    ++mood_->refusals;
    return {0, ETOOMANYREFS, false};
  }
  bool has_unsent() const override { return inner_->has_unsent(); }
  io_outcome flush() override { return inner_->flush(); }
  bool carries_fds() const noexcept override { return inner_->carries_fds(); }
  status explain(int error_number) const override { return inner_->explain(error_number); }
  byte_buffer binding() const override { return inner_->binding(); }
  std::optional<std::array<std::byte, 32>> export_key(std::string_view label) const override {
    return inner_->export_key(label);
  }
  status vouch_for(const std::string& name) const override { return inner_->vouch_for(name); }

private:
  std::unique_ptr<byte_stream> inner_;
  std::shared_ptr<mood> mood_;
};

struct reluctant : service {
  reluctant() : service(one_at_a_time()) {
    auto to = parse_unix_address(address()).value();
    auto fd = make_unix_socket().value();
    BOOST_TEST_REQUIRE(::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0);
    connection_seed seed;
    seed.who = credentials_of(fd.get()).value();
    seed.stream = std::make_unique<reluctant_stream>(std::move(fd), mood);
    seed.began = steady_clock::now();
    auto made = std::make_shared<connection>(
      loop, std::move(seed), channel_options{}, connector_hooks(address(), {}, mine, [](auto) {}));
    loop->post([made] { made->start(); });
    BOOST_TEST_REQUIRE(mine->wait([&] { return !mine->channels.empty(); }));
    c = made;
  }
  ~reluctant() { c->close({}, 0); }

  static channel_options one_at_a_time() {
    channel_options o;
    o.requests_max = 1;
    return o;
  }
  status request(std::uint64_t number, std::span<const int> fds) {
    return c->send(frame_kind::request, number, bytes_of(10), fds);
  }

  std::shared_ptr<reluctant_stream::mood> mood = std::make_shared<reluctant_stream::mood>();
  std::shared_ptr<recorder> mine = std::make_shared<recorder>();
  std::shared_ptr<channel> c;
  unique_fd some{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(channel_descriptors, reluctant)

BOOST_AUTO_TEST_CASE(a_message_whose_descriptors_are_not_taken_is_busy) {
  mood->refuses = true;
  int fds[]{some.get()};
  BOOST_TEST((c->send(frame_kind::driver, 0, bytes_of(10), fds).code() == errc::busy));
  mood->refuses = false;
  BOOST_TEST(c->send(frame_kind::driver, 0, bytes_of(10), fds).ok());
  BOOST_TEST(handler->wait_frames(1));
}

BOOST_AUTO_TEST_CASE(a_request_that_was_promised_waits_until_they_are_taken_and_spins_not) {
  int fds[]{some.get()};
  BOOST_TEST(request(1, {}).ok());
  BOOST_TEST(request(2, fds).ok()); // waits for the credit of the first
  BOOST_TEST_REQUIRE(handler->wait_frames(1));
  mood->refuses = true;
  BOOST_TEST(handler->channels.at(0)->send(frame_kind::reply, 1, bytes_of(1), {}).ok());
  BOOST_TEST_REQUIRE(mine->wait_frames(1));
  while (mood->refusals < 2)
    std::this_thread::yield();
  auto begun = steady_clock::now();
  while (mood->refusals < 7)
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  // A timer never comes too early: four pauses lie between.
  BOOST_TEST((steady_clock::now() - begun >= std::chrono::milliseconds{40}));
  BOOST_TEST(handler->frame_count() == 1u);
  mood->refuses = false;
  BOOST_TEST_REQUIRE(handler->wait_frames(2));
  BOOST_TEST(handler->frames[1].correlation == 2u);
  BOOST_TEST(handler->frames[1].fds.size() == 1u);
  // And the channel goes on by events.
  BOOST_TEST(handler->channels.at(0)->send(frame_kind::reply, 2, bytes_of(1), {}).ok());
  BOOST_TEST(request(3, fds).ok());
  BOOST_TEST(handler->wait_frames(3));
}

BOOST_AUTO_TEST_SUITE_END()
