// Sends bytes over a loopback connection: plainly, and with MSG_ZEROCOPY. It also measures the cost
// of the call alone, which is all that io_uring could save.
// Run by hand: bench_socket_ways [ROUNDS].
#include <millrace/bench/common/measure.hpp>

#include <arpa/inet.h>
#include <linux/errqueue.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

using namespace millrace;
using namespace millrace::bench;

namespace {

constexpr std::size_t call_bytes = 1u << 20;
constexpr std::size_t calls = 1024;
constexpr std::size_t memory_bytes = 64 * call_bytes; // more than the caches hold

[[noreturn]] void give_up_here(const char* doing) {
  give_up(status_from_errno(errno, doing), "sockets over loopback");
}

// A connection, with one thread that reads what the other sends.
class connection {
public:
  connection() : memory_(memory_bytes, std::byte{1}) {
    int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof where;
    auto* address = reinterpret_cast<sockaddr*>(&where);
    if (
      bind(listening, address, length) != 0 || listen(listening, 1) != 0 ||
      getsockname(listening, address, &length) != 0)
      give_up_here("listening");
    sender_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(sender_, address, length) != 0)
      give_up_here("connecting");
    receiver_ = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    close(listening);
    int on = 1;
    zero_copy_ = setsockopt(sender_, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) == 0;
    reader_ = std::thread{[fd = receiver_] {
      std::vector<std::byte> sink(call_bytes);
      while (recv(fd, sink.data(), sink.size(), 0) > 0) {
      }
    }};
  }
  connection(const connection&) = delete;
  connection& operator=(const connection&) = delete;
  ~connection() {
    shutdown(sender_, SHUT_RDWR);
    reader_.join();
    close(sender_);
    close(receiver_);
  }

  bool has_zero_copy() const noexcept { return zero_copy_; }

  /// Sends everything. Returns when the kernel no longer needs the memory.
  void send_all(int flags) {
    std::size_t pinned = 0; // calls whose memory the kernel still uses
    for (std::size_t i = 0; i < calls; ++i) {
      auto* data = memory_.data() + i * call_bytes % memory_bytes;
      for (std::size_t sent = 0; sent < call_bytes;) {
        auto n = send(sender_, data + sent, call_bytes - sent, flags | MSG_NOSIGNAL);
        if (n < 0 && errno != ENOBUFS)
          give_up_here("sending");
        if (n > 0)
          sent += static_cast<std::size_t>(n);
        pinned += n > 0 && flags == MSG_ZEROCOPY ? 1 : 0;
        pinned -= released(false);
      }
    }
    while (pinned > 0)
      pinned -= released(true);
  }

  /// Makes a call that has nothing to send.
  void call_only() const { static_cast<void>(send(sender_, nullptr, 0, MSG_NOSIGNAL)); }

private:
  // Returns how many calls the kernel reports as done.
  std::size_t released(bool wait) const {
    std::byte control[128];
    msghdr message{};
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (recvmsg(sender_, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
      if (wait)
        std::this_thread::yield();
      return 0;
    }
    auto* header = CMSG_FIRSTHDR(&message);
    if (!header)
      return 0;
    sock_extended_err told{};
    std::memcpy(&told, CMSG_DATA(header), sizeof told);
    return told.ee_origin == SO_EE_ORIGIN_ZEROCOPY ? told.ee_data - told.ee_info + 1 : 0;
  }

  std::vector<std::byte> memory_;
  int sender_ = -1;
  int receiver_ = -1;
  bool zero_copy_ = false;
  std::thread reader_;
};

void compare(std::size_t rounds) {
  connection c;
  contest all;
  auto& plain = all.add([&] { return seconds_of([&] { c.send_all(0); }); });
  auto& zero_copy =
    all.add([&] { return c.has_zero_copy() ? seconds_of([&] { c.send_all(MSG_ZEROCOPY); }) : 0; });
  auto& call = all.add([&] {
    return seconds_of([&] {
      for (std::size_t i = 0; i < calls; ++i)
        c.call_only();
    });
  });
  all.run(rounds);
  auto bytes = static_cast<double>(calls * call_bytes);
  std::printf("send, 1 MiB a call       %6.2f GB/s\n", bytes / plain.median() / 1e9);
  if (c.has_zero_copy())
    std::printf(
      "with MSG_ZEROCOPY        %6.2f GB/s   %4.2f of the speed of plain calls\n",
      bytes / zero_copy.median() / 1e9, plain.median() / zero_copy.median());
  else
    std::printf("with MSG_ZEROCOPY        skipped: this kernel has none\n");
  std::printf(
    "a call without bytes     %6.0f ns     %4.2f %% of one with 1 MiB\n",
    call.median() / calls * 1e9, call.median() / plain.median() * 100);
}

} // namespace

int main(int argc, char** argv) {
  try {
    compare(static_cast<std::size_t>(argc > 1 ? std::max(1, std::atoi(argv[1])) : 5));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
