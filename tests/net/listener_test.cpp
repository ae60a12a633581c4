// Tests listeners at Unix sockets, and who may connect to them.
#include "channel_support.hpp"

#include <millrace/net/channel/refusal_log.hpp>
#include <millrace/tests/support/kept_log.hpp>
#include <millrace/tests/support/other_user.hpp>
#include <millrace/tests/support/skipped.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace millrace;
using namespace millrace::net;
using namespace millrace::net::testing;
using millrace::testing::kept_log;
using namespace std::chrono_literals;

BOOST_AUTO_TEST_SUITE(listeners)

BOOST_AUTO_TEST_CASE(nobody_listening_is_said_with_path_and_remedy) {
  auto loop = make_loop();
  temp_dir dir;
  auto address = "unix:" + dir.path + "/none.sock";
  auto c = connect_to(loop, address, {}, std::make_shared<recorder>());
  BOOST_REQUIRE(!c);
  BOOST_TEST((c.error().code() == errc::unavailable));
  BOOST_TEST(c.error().detail().find(address) != std::string::npos);
  for (auto bad : {"tcp:host:1", "unix:relative", "unix:", ""}) {
    auto refused = connect_to(loop, bad, {}, std::make_shared<recorder>());
    BOOST_TEST((refused.error().code() == errc::invalid_argument));
  }
  auto longer = connect_to(loop, "unix:/" + std::string(200, 'x'), {}, nullptr);
  BOOST_TEST((longer.error().code() == errc::invalid_argument));
  loop->stop();
}

BOOST_AUTO_TEST_CASE(a_live_socket_is_refused_and_removed_when_its_listener_goes) {
  auto s = std::make_unique<service>();
  auto accept = [&](const peer_info&) { return s->handler; };
  auto second = listener::open(s->loop, s->where, {}, accept);
  BOOST_REQUIRE(!second);
  BOOST_TEST((second.error().code() == errc::already_exists));
  auto path = s->address().substr(5);
  BOOST_TEST(std::filesystem::exists(path));
  s->listening->stop();
  BOOST_TEST(!std::filesystem::exists(path));
  BOOST_TEST(!std::filesystem::exists(path + ".lock"));
  auto third = listener::open(s->loop, s->where, {}, accept);
  BOOST_TEST(third.has_value());
}

BOOST_AUTO_TEST_CASE(open_channels_outlive_their_listener) {
  service s;
  auto client = std::make_shared<recorder>();
  auto c = s.connect(client);
  s.listening = nullptr;
  BOOST_TEST(c->send(frame_kind::driver, 1, {}, {}).ok());
  BOOST_TEST(s.handler->wait_frames(1));
  auto late = connect_to(s.loop, s.address(), {}, client);
  BOOST_TEST((late.error().code() == errc::unavailable));
}

BOOST_AUTO_TEST_CASE(a_socket_left_by_a_dead_process_is_taken_over) {
  temp_dir dir;
  listener_options where;
  where.address = "unix:" + dir.path + "/n0.sock";
  auto child = ::fork();
  if (child == 0) {
    auto loop = *io_loop::start({});
    auto l = listener::open(loop, where, {}, refuse_all);
    ::_exit(l ? 0 : 1);
  }
  int state = 0;
  ::waitpid(child, &state, 0);
  BOOST_TEST(WEXITSTATUS(state) == 0);
  BOOST_REQUIRE(std::filesystem::exists(dir.path + "/n0.sock"));
  service s{{}, where};
  auto c = s.connect(std::make_shared<recorder>());
  BOOST_TEST(c->is_open());
}

BOOST_AUTO_TEST_CASE(a_file_that_is_no_socket_is_left_alone) {
  temp_dir dir;
  auto path = dir.path + "/n0.sock";
  ::close(::open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  auto loop = make_loop();
  listener_options where;
  where.address = "unix:" + path;
  auto l = listener::open(loop, where, {}, refuse_all);
  BOOST_REQUIRE(!l);
  BOOST_TEST((l.error().code() == errc::already_exists));
  BOOST_TEST(std::filesystem::is_regular_file(path));
  loop->stop();
}

BOOST_AUTO_TEST_CASE(who_may_write_to_the_socket_may_pass_through_its_directory_and_nobody_else) {
  const std::vector<std::pair<unsigned, unsigned>> modes = {
    {0600, 0700}, {0660, 0710}, {0606, 0701}, {0666, 0711}};
  for (auto [socket_mode, directory_mode] : modes) {
    kept_log log;
    temp_dir dir;
    listener_options where;
    where.address = "unix:" + dir.path + "/made/n0.sock";
    where.socket_mode = socket_mode;
    service s{{}, where};
    struct stat found {};
    BOOST_REQUIRE(::stat((dir.path + "/made/n0.sock").c_str(), &found) == 0);
    BOOST_TEST((found.st_mode & 0777) == socket_mode);
    BOOST_REQUIRE(::stat((dir.path + "/made").c_str(), &found) == 0);
    BOOST_TEST((found.st_mode & 0777) == directory_mode);
    BOOST_TEST(log.count("may not enter its directory") == 0u);
  }
}

BOOST_AUTO_TEST_CASE(a_directory_that_keeps_out_who_may_write_to_the_socket_is_named) {
  const std::vector<std::pair<unsigned, std::string>> modes = {
    {0600, ""}, {0660, "chmod g+x "}, {0606, "chmod o+x "}, {0666, "chmod go+x "}};
  for (auto& [socket_mode, remedy] : modes) {
    kept_log log;
    temp_dir dir;
    ::chmod(dir.path.c_str(), 0700);
    listener_options where;
    where.address = "unix:" + dir.path + "/n0.sock";
    where.socket_mode = socket_mode;
    service s{{}, where};
    BOOST_TEST(log.count("may not enter its directory") == (remedy.empty() ? 0u : 1u));
    BOOST_TEST(log.text().find(remedy) != std::string::npos, log.text());
  }
}

BOOST_AUTO_TEST_CASE(connections_beyond_the_bound_are_told_busy) {
  listener_options two;
  two.connections_max = 2;
  service s{{}, two};
  auto client = std::make_shared<recorder>();
  auto a = s.connect(client), b = s.connect(client);
  auto refused = connect_to(s.loop, s.address(), {}, client);
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::busy));
  a->close({});
  BOOST_REQUIRE(s.handler->wait_closings(1));
  // The place is given back on the loop, right after the handler's last word.
  promise<int> after;
  s.loop->post([after] { after.set(0); });
  after.get_future().get();
  BOOST_TEST(s.connect(client)->is_open());
}

BOOST_AUTO_TEST_CASE(connections_that_say_nothing_keep_nobody_out) {
  kept_log lines;
  forget_refusals();
  listener_options few;
  few.connections_max = 2;
  few.handshakes_max = 8;
  service s{{}, few};
  std::vector<std::unique_ptr<raw_client>> silent;
  for (int i = 0; i < 40; ++i)
    silent.push_back(std::make_unique<raw_client>(s.address()));
  auto client = std::make_shared<recorder>();
  auto a = s.connect(client), b = s.connect(client);
  BOOST_TEST(a->is_open());
  BOOST_TEST(b->is_open());
  // The oldest ones gave way.
  BOOST_TEST((silent.front()->read_to_end().code() == errc::busy));
  BOOST_TEST(lines.count("refused a connection") == 1u);
}

// Makes connections as another user until it gets no more, says how many, and keeps them.
int hold_connections_as(std::uint32_t uid, const std::string& address, int told) {
  if (::setuid(uid) != 0)
    return 99;
  auto loop = *io_loop::start({});
  std::vector<std::shared_ptr<channel>> held;
  for (int i = 0; i < 64; ++i) {
    promise<std::shared_ptr<channel>> p{loop};
    connect(loop, address, {}, std::make_shared<recorder>(), [p](auto o) { p.set(o); });
    if (auto outcome = p.get_future().result())
      held.push_back(*outcome);
  }
  auto count = static_cast<unsigned char>(held.size());
  static_cast<void>(!::write(told, &count, 1));
  return ::pause();
}

BOOST_AUTO_TEST_CASE(connections_of_one_user_leave_room_for_root_and_for_others) {
  constexpr std::uint32_t nobody = 65534;
  if (auto why = millrace::testing::why_not_as(nobody); !why.empty()) {
    millrace::testing::skipped("connections of several users: " + why);
    return;
  }
  std::deque<child_process> children;
  for (int i = 0; i < 3; ++i)
    children.emplace_back(
      [](auto& address, int told) { return hold_connections_as(nobody, address, told); });
  listener_options where;
  where.socket_mode = 0666;
  where.allow_uids = {nobody};
  where.connections_max = 32;
  service s{{}, where};
  ::chmod(s.dir.path.c_str(), 0755);
  std::vector<int> counts;
  for (auto& child : children) {
    child.begin(s.address());
    counts.push_back(child.hear().value_or(0));
  }
  BOOST_TEST(counts.at(0) == 16);
  BOOST_TEST(counts.at(1) > 0);
  BOOST_TEST(counts.at(2) > 0);
  auto client = std::make_shared<recorder>();
  BOOST_TEST(s.connect(client)->is_open());
  BOOST_TEST(s.connect(client)->is_open());
}

BOOST_AUTO_TEST_CASE(a_connection_the_service_does_not_want_is_refused_with_a_reason) {
  auto loop = make_loop();
  temp_dir dir;
  listener_options where;
  where.address = "unix:" + dir.path + "/n0.sock";
  auto l = listener::open(loop, where, {}, refuse_all);
  BOOST_REQUIRE(l);
  auto c = connect_to(loop, where.address, {}, std::make_shared<recorder>());
  BOOST_REQUIRE(!c);
  BOOST_TEST((c.error().code() == errc::unavailable));
  BOOST_TEST(c.error().detail().ends_with("refused the connection: this service wants nobody"));
  BOOST_TEST(!is_starting(c.error()));
  loop->stop();
}

// A service of another user gets nothing of a client, not even its hello.
BOOST_AUTO_TEST_CASE(a_service_of_another_user_is_refused_unless_trusted) {
  constexpr std::uint32_t nobody = 65534;
  if (auto why = millrace::testing::why_not_as(nobody); !why.empty()) {
    millrace::testing::skipped("a service of another user: " + why);
    return;
  }
  temp_dir dir;
  ::chmod(dir.path.c_str(), 0777);
  auto path = dir.path + "/n0.sock";
  int told[2];
  BOOST_REQUIRE(::pipe(told) == 0);
  auto child = ::fork();
  if (child == 0) {
    auto fd = *make_unix_socket();
    auto where = *parse_unix_address("unix:" + path);
    bool listening = ::setuid(nobody) == 0 && ::fcntl(fd.get(), F_SETFL, 0) == 0 &&
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&where), sizeof(where)) == 0 &&
      ::listen(fd.get(), 8) == 0;
    auto said = listening ? 'l' : 'n';
    static_cast<void>(!::write(told[1], &said, 1));
    // What the two clients send, until they close.
    for (int i = 0; i < 2; ++i) {
      auto c = ::accept(fd.get(), nullptr, nullptr);
      char first = 0;
      auto got = ::recv(c, &first, 1, 0) == 1 ? 'b' : '-';
      static_cast<void>(!::write(told[1], &got, 1));
      ::close(c);
    }
    ::_exit(0);
  }
  ::close(told[1]);
  auto answer = [&] {
    char byte = 0;
    BOOST_TEST(::read(told[0], &byte, 1) == 1);
    return byte;
  };
  BOOST_TEST_REQUIRE(answer() == 'l');
  auto loop = make_loop();
  auto refused = connect_to(loop, "unix:" + path, {}, std::make_shared<recorder>());
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::permission_denied));
  BOOST_TEST(refused.error().detail().find("client.trust_users") != std::string::npos);
  BOOST_TEST(answer() == '-');
  channel_options trusting;
  trusting.trust_uids = {nobody};
  auto lost = connect_to(loop, "unix:" + path, trusting, std::make_shared<recorder>());
  BOOST_REQUIRE(!lost);
  BOOST_TEST((lost.error().code() == errc::peer_lost));
  BOOST_TEST(answer() == 'b');
  ::close(told[0]);
  ::waitpid(child, nullptr, 0);
  loop->stop();
}

// Connects as another user, and returns the outcome of the last attempt.
int connect_as(std::uint32_t user, const std::string& address, int attempts) {
  if (::setuid(user) != 0)
    return 99;
  auto loop = *io_loop::start({});
  auto code = 0;
  for (; attempts > 0; --attempts) {
    promise<std::shared_ptr<channel>> p{loop};
    connect(loop, address, {}, std::make_shared<recorder>(), [p](auto o) { p.set(o); });
    auto outcome = p.get_future().result();
    code = outcome ? 0 : static_cast<int>(outcome.error().code());
  }
  return code;
}

BOOST_AUTO_TEST_CASE(another_user_is_refused_unless_listed) {
  constexpr std::uint32_t nobody = 65534;
  constexpr int attempts = 1000;
  if (auto why = millrace::testing::why_not_as(nobody); !why.empty())
    return millrace::testing::skipped("another user on the socket: " + why);
  forget_refusals();
  kept_log log;
  for (auto listed : {false, true}) {
    child_process child{
      [listed](auto& address, int) { return connect_as(nobody, address, listed ? 1 : attempts); }};
    listener_options open_to_all;
    open_to_all.socket_mode = 0666;
    if (listed)
      open_to_all.allow_uids = {nobody};
    service s{{}, open_to_all};
    ::chmod(s.dir.path.c_str(), 0755);
    child.begin(s.address());
    BOOST_TEST(child.wait() == (listed ? 0 : static_cast<int>(errc::permission_denied)));
  }
  // However often they try.
  BOOST_TEST(log.count("refused a connection") == 1u, log.text().substr(0, 2000));
}

BOOST_AUTO_TEST_SUITE_END()
