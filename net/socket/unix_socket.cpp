// System calls on Unix stream sockets.
// Used by `connect`, listeners and channels.
#include <millrace/core/assert.hpp>
#include <millrace/net/socket/unix_socket.hpp>

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace millrace::net {

namespace {

union fd_message {
  char bytes[CMSG_SPACE(sizeof(int) * fds_at_once_max)];
  cmsghdr align;
};

void collect_fds(msghdr& message, std::vector<unique_fd>& fds) {
  for (auto* c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
      continue;
    auto count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
}

} // namespace

result<sockaddr_un> parse_unix_address(const std::string& address) {
  constexpr std::string_view scheme = "unix:";
  if (!address.starts_with(scheme))
    return fail(
      errc::invalid_argument, "address {}: expected unix:/absolute/path or tls://host:port",
      address);
  auto path = address.substr(scheme.size());
  sockaddr_un out{};
  out.sun_family = AF_UNIX;
  if (path.empty() || path.front() != '/' || path.find('\0') != std::string::npos)
    return fail(errc::invalid_argument, "address {}: the path must be absolute", address);
  if (path.size() >= sizeof(out.sun_path))
    return fail(
      errc::invalid_argument,
      "address {}: a socket's path has at most {} bytes; choose a shorter directory", address,
      sizeof(out.sun_path) - 1);
  std::memcpy(out.sun_path, path.c_str(), path.size() + 1);
  return out;
}

result<unique_fd> make_unix_socket() {
  unique_fd fd{::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
  if (!fd)
    return fail(status_from_errno(errno, "making a socket"));
  return fd;
}

result<peer_credentials> credentials_of(int fd) {
  ucred found{};
  socklen_t size = sizeof(found);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &found, &size) != 0)
    return fail(status_from_errno(errno, "asking who is at the other end of a socket"));
  return peer_credentials{static_cast<std::uint32_t>(found.pid), found.uid};
}

io_outcome receive_with_fds(int fd, std::span<std::byte> room, std::vector<unique_fd>& fds) {
  fd_message control;
  iovec part{room.data(), room.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  ssize_t n = 0;
  do
    n = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  while (n < 0 && errno == EINTR);
  if (n < 0)
    return {0, errno, false};
  if (message.msg_controllen > 0)
    collect_fds(message, fds);
  return {static_cast<std::size_t>(n), 0, (message.msg_flags & MSG_CTRUNC) != 0};
}

io_outcome send_with_fds(int fd, std::span<const iovec> parts, std::span<const int> fds) noexcept {
  MILLRACE_ASSERT(fds.size() <= fds_at_once_max);
  fd_message control{};
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  if (!fds.empty()) {
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    auto* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(c), fds.data(), fds.size_bytes());
  }
  ssize_t n = 0;
  do
    n = ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  while (n < 0 && errno == EINTR);
  if (n < 0)
    return {0, errno, false};
  return {static_cast<std::size_t>(n), 0, false};
}

} // namespace millrace::net
