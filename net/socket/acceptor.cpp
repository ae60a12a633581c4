// Binding TCP sockets, and accepting a bounded number of connections in each turn of the loop.
#include <millrace/core/log.hpp>
#include <millrace/net/channel/refusal_log.hpp>
#include <millrace/net/socket/acceptor.hpp>

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace millrace::net {

namespace {

constexpr int accepts_per_turn = 32;
constexpr std::uint32_t pause_ms = 100;

status cannot_listen(int error_number, const std::string& doing) {
  if (error_number == EADDRINUSE)
    return {errc::already_exists, doing + ": another process has this port"};
  if (error_number == EADDRNOTAVAIL)
    return {errc::unavailable, doing + ": this machine does not have that address"};
  return status_from_errno(error_number, doing);
}

// Without descriptors or memory the connection waits and keeps the socket readable.
bool lacks_descriptors(int error_number) noexcept {
  return error_number == EMFILE || error_number == ENFILE || error_number == ENOBUFS ||
    error_number == ENOMEM;
}

} // namespace

result<unique_fd> listen_at(const socket_address& at, const std::string& doing) {
  unique_fd fd{::socket(at.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
  auto takes_v4 = at.family() == AF_INET6 && at.host() == "::";
  int on = 1, only_v6 = takes_v4 ? 0 : 1;
  auto made = fd && ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
    (at.family() != AF_INET6 ||
     ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &only_v6, sizeof(only_v6)) == 0) &&
    ::bind(fd.get(), at.get(), at.size_bytes()) == 0 && ::listen(fd.get(), tcp_backlog) == 0;
  if (!made)
    return fail(cannot_listen(errno, doing));
  return fd;
}

result<socket_address> bound_address(int fd) {
  sockaddr_storage found{};
  socklen_t size = sizeof(found);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&found), &size) != 0)
    return fail(status_from_errno(errno, "asking for a socket's address"));
  return socket_address::from(reinterpret_cast<const sockaddr*>(&found), size);
}

void acceptor::open() {
  for (auto& s : sockets_) {
    auto watched =
      loop_->watch(s.get(), EPOLLIN, [weak = weak_from_this(), fd = s.get()](std::uint32_t) {
        if (auto a = weak.lock())
          a->on_ready(fd);
      });
    if (!watched.ok())
      log().error("cannot accept connections address={}: {}", address_, watched.to_string());
  }
}

void acceptor::close() {
  for (auto& s : std::exchange(sockets_, {}))
    loop_->unwatch(s.get());
}

void acceptor::on_ready(int listening) {
  for (int i = 0; i < accepts_per_turn && !sockets_.empty(); ++i)
    if (!accept_one(listening))
      return;
}

bool acceptor::accept_one(int listening) {
  sockaddr_storage found{};
  socklen_t size = sizeof(found);
  auto* name = reinterpret_cast<sockaddr*>(&found);
  unique_fd fd{::accept4(listening, name, &size, SOCK_NONBLOCK | SOCK_CLOEXEC)};
  if (fd) {
    auto from = found.ss_family == AF_UNIX ? socket_address{} : socket_address::from(name, size);
    if (from)
      receive_(std::move(fd), without_mapping(*from));
    return true;
  }
  auto why = errno;
  if (lacks_descriptors(why)) {
    no_descriptors_left(address_);
    pause();
    return false;
  }
  // Errors of the network belong to the one connection that was lost.
  return why != EAGAIN && why != EBADF && why != EINVAL;
}

void acceptor::pause() {
  for (auto& s : sockets_)
    loop_->unwatch(s.get());
  loop_->run_after(pause_ms, [weak = weak_from_this()] {
    if (auto a = weak.lock())
      a->open();
  });
}

} // namespace millrace::net
