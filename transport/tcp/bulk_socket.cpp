// Makes the system calls on the sockets of streams.
#include <millrace/transport/tcp/bulk_socket.hpp>

#include <sys/socket.h>

#include <cerrno>

namespace millrace::transport::tcp {

namespace {

std::size_t total(std::span<const iovec> parts) noexcept {
  std::size_t sum = 0;
  for (auto& p : parts)
    sum += p.iov_len;
  return sum;
}

class plain_socket : public bulk_socket {
public:
  explicit plain_socket(net::unique_fd fd) noexcept : fd_(std::move(fd)) {}

  int fd() const noexcept override { return fd_.get(); }

  moved_bytes send(std::span<const iovec> parts, bool more) noexcept override {
    return send_some(fd_.get(), parts, more);
  }

  moved_bytes receive(std::span<const iovec> parts) noexcept override {
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts.data());
    message.msg_iovlen = parts.size();
    ssize_t n = 0;
    do
      n = ::recvmsg(fd_.get(), &message, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0)
      return {0, errno, errno == EAGAIN};
    auto size_bytes = static_cast<std::size_t>(n);
    return {size_bytes, 0, size_bytes < total(parts)};
  }

  void shut() noexcept override { ::shutdown(fd_.get(), SHUT_RDWR); }

private:
  net::unique_fd fd_;
};

} // namespace

moved_bytes send_some(int fd, std::span<const iovec> parts, bool more) noexcept {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  ssize_t n = 0;
  do
    n = ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL | (more ? MSG_MORE : 0));
  while (n < 0 && errno == EINTR);
  if (n < 0)
    return {0, errno, false};
  return {static_cast<std::size_t>(n), 0, false};
}

std::unique_ptr<bulk_socket> make_plain_socket(net::unique_fd fd) {
  return std::make_unique<plain_socket>(std::move(fd));
}

} // namespace millrace::transport::tcp
