// The socket of a service manager, to which services send how they stand. Used by tests of it.
#pragma once

#include <millrace/tests/support/process.hpp>

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace millrace::testing {

/// Names itself in NOTIFY_SOCKET for the processes that the test starts, while it lives.
class notify_socket {
public:
  /// `name`: a path, or '@' and the name of an abstract socket.
  explicit notify_socket(const std::string& name)
    : fd_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (fd_ < 0 || name.size() >= sizeof address.sun_path)
      throw std::runtime_error{"no socket for " + name};
    std::memcpy(address.sun_path, name.data(), name.size());
    if (name.front() == '@')
      address.sun_path[0] = '\0';
    auto bytes = static_cast<socklen_t>(
      offsetof(sockaddr_un, sun_path) + name.size() + (name.front() == '@' ? 0 : 1));
    timeval patience{.tv_sec = 60, .tv_usec = 0};
    if (
      ::bind(fd_, reinterpret_cast<sockaddr*>(&address), bytes) != 0 ||
      ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) != 0)
      throw std::runtime_error{"binding " + name + ": " + std::strerror(errno)};
    ::setenv("NOTIFY_SOCKET", name.c_str(), 1);
  }
  ~notify_socket() {
    ::unsetenv("NOTIFY_SOCKET");
    ::close(fd_);
  }
  notify_socket(const notify_socket&) = delete;
  notify_socket& operator=(const notify_socket&) = delete;

  /// Returns the next datagram; empty if none came within a minute.
  std::string next() const {
    std::string text(4096, '\0');
    auto got = ::recv(fd_, text.data(), text.size(), 0);
    text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
    return text;
  }

  /// Returns the next datagram that begins with `words`; empty if none came.
  std::string await(const std::string& words) const {
    auto text = next();
    while (!text.empty() && !text.starts_with(words))
      text = next();
    return text;
  }

private:
  int fd_;
};

} // namespace millrace::testing
