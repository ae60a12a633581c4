// Measures round trips of 4 KiB between two processes: through a channel, and through a bare socket
// with epoll.
// Run by hand: bench_channel_pingpong [ROUNDS].
#include <millrace/net/channel/channel.hpp>

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>

using namespace millrace;
using namespace millrace::net;

namespace {

constexpr std::size_t body_bytes = 4096;
using body_type = std::array<std::byte, body_bytes>;

struct figures {
  double p50_us = 0;
  double p99_us = 0;
};

figures measure(int rounds, const std::function<void()>& round_trip) {
  for (int i = 0; i < rounds / 10; ++i)
    round_trip();
  std::vector<double> us(static_cast<std::size_t>(rounds));
  for (auto& sample : us) {
    auto begin = steady_clock::now();
    round_trip();
    sample = std::chrono::duration<double, std::micro>(steady_clock::now() - begin).count();
  }
  std::sort(us.begin(), us.end());
  return {us[us.size() / 2], us[us.size() * 99 / 100]};
}

void print(const char* what, figures f) {
  std::printf("%-28s p50 %7.1f us   p99 %7.1f us\n", what, f.p50_us, f.p99_us);
  std::fflush(stdout);
}

class echo : public channel_handler {
  void on_open(const std::shared_ptr<channel>&) override {}
  void on_frame(channel& c, frame f) override {
    static_cast<void>(c.send(frame_kind::reply, f.correlation, f.body));
  }
  void on_close(channel&, const status&) override {}
};

class caller : public channel_handler {
public:
  std::optional<promise<int>> waiting;

private:
  void on_open(const std::shared_ptr<channel>&) override {}
  void on_frame(channel&, frame) override { waiting->set(0); }
  void on_close(channel&, const status&) override {}
};

[[noreturn]] void serve(const std::string& address, std::uint32_t poll_us, int ready, int stop) {
  auto loop = *io_loop::start({poll_us});
  channel_options options;
  options.local_name = "echo";
  listener_options where;
  where.address = address;
  auto listening =
    listener::open(loop, where, options, [](const peer_info&) { return std::make_shared<echo>(); });
  char byte = listening ? 1 : 0;
  [[maybe_unused]] auto w = ::write(ready, &byte, 1);
  [[maybe_unused]] auto r = ::read(stop, &byte, 1);
  *listening = nullptr;
  loop->stop();
  std::_Exit(0);
}

figures over_channel(int rounds, std::uint32_t poll_us) {
  char dir[] = "/tmp/millrace_bench_XXXXXX";
  std::string address = std::string{"unix:"} + ::mkdtemp(dir) + "/s";
  int ready[2], stop[2];
  if (::pipe(ready) != 0 || ::pipe(stop) != 0)
    std::abort();
  auto child = ::fork();
  if (child == 0) {
    ::close(stop[1]);
    serve(address, poll_us, ready[1], stop[0]);
  }
  char byte = 0;
  [[maybe_unused]] auto r = ::read(ready[0], &byte, 1);
  auto loop = *io_loop::start({poll_us});
  auto handler = std::make_shared<caller>();
  promise<std::shared_ptr<channel>> opened{loop};
  connect(loop, address, {}, handler, [opened](auto outcome) { opened.set(outcome); });
  auto c = opened.get_future().get();
  body_type body{};
  std::uint64_t correlation = 0;
  auto result = measure(rounds, [&] {
    handler->waiting.emplace(loop);
    auto f = handler->waiting->get_future();
    if (!c->send(frame_kind::request, ++correlation, body).ok())
      std::abort();
    f.get();
  });
  c->close({});
  loop->stop();
  ::close(stop[1]);
  ::waitpid(child, nullptr, 0);
  ::rmdir(dir);
  return result;
}

void wait_readable(int epoll, bool polling) {
  epoll_event event;
  while (::epoll_wait(epoll, &event, 1, polling ? 0 : -1) != 1) {
  }
}

int epoll_of(int fd) {
  auto epoll = ::epoll_create1(0);
  epoll_event event{};
  event.events = EPOLLIN;
  ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
  return epoll;
}

bool pass(int epoll, int fd, body_type& body, bool polling) {
  for (std::size_t got = 0; got < body_bytes;) {
    wait_readable(epoll, polling);
    auto n = ::recv(fd, body.data() + got, body_bytes - got, MSG_DONTWAIT);
    if (n <= 0)
      return false;
    got += static_cast<std::size_t>(n);
  }
  return true;
}

figures over_socket(int rounds, bool polling) {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0)
    std::abort();
  body_type body{};
  auto child = ::fork();
  if (child == 0) {
    ::close(fds[0]);
    auto epoll = epoll_of(fds[1]);
    while (pass(epoll, fds[1], body, polling))
      [[maybe_unused]] auto n = ::send(fds[1], body.data(), body_bytes, MSG_NOSIGNAL);
    std::_Exit(0);
  }
  ::close(fds[1]);
  auto epoll = epoll_of(fds[0]);
  auto result = measure(rounds, [&] {
    [[maybe_unused]] auto n = ::send(fds[0], body.data(), body_bytes, MSG_NOSIGNAL);
    pass(epoll, fds[0], body, polling);
  });
  ::close(fds[0]);
  ::close(epoll);
  ::waitpid(child, nullptr, 0);
  return result;
}

} // namespace

int main(int argc, char** argv) {
  auto rounds = argc > 1 ? std::max(10, std::atoi(argv[1])) : 20000;
  print("socket, polling", over_socket(rounds, true));
  print("socket, blocking", over_socket(rounds, false));
  print("channel, polling 50 us", over_channel(rounds, 50));
  print("channel, blocking", over_channel(rounds, 0));
}
