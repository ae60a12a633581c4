// A BIO of our own: OpenSSL's socket BIO may end the process by SIGPIPE.
#include <millrace/core/assert.hpp>
#include <millrace/net/tls/socket.hpp>

#include <openssl/bio.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace millrace::net::tls {

namespace {

constexpr std::size_t kept_capacity_max = 128 * 1024; // while nothing waits to be written

} // namespace

struct socket::methods {
  static socket& of(BIO* bio) { return *static_cast<socket*>(BIO_get_data(bio)); }

  static int read(BIO* bio, char* data, int size) {
    auto& s = of(bio);
    BIO_clear_retry_flags(bio);
    ssize_t n = -1;
    errno = EAGAIN;
    if (!std::exchange(s.emptied_, false)) {
      do
        n = ::recv(s.fd_.get(), data, static_cast<std::size_t>(size), MSG_DONTWAIT);
      while (n < 0 && errno == EINTR);
      s.emptied_ = n > 0 && n < size;
    }
    if (n < 0 && errno == EAGAIN)
      BIO_set_retry_read(bio);
    else if (n < 0)
      s.read_error_ = errno;
    else if (n == 0)
      s.ended_ = true;
    return static_cast<int>(n);
  }

  // Takes all bytes. `write_out` reports a broken socket; the session stays readable.
  static int write(BIO* bio, const char* data, int size) {
    auto& s = of(bio);
    BIO_clear_retry_flags(bio);
    auto* bytes = reinterpret_cast<const std::byte*>(data);
    auto idle = s.unsent_bytes() == 0;
    s.out_.insert(s.out_.end(), bytes, bytes + size);
    if (idle && !s.gathering_)
      s.write_out();
    return size;
  }

  static long control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }
};

bio_st* socket::make_bio() {
  static BIO_METHOD* const method = [] {
    auto* m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "millrace socket");
    MILLRACE_ASSERT(m != nullptr);
    BIO_meth_set_read(m, methods::read);
    BIO_meth_set_write(m, methods::write);
    BIO_meth_set_ctrl(m, methods::control);
    return m;
  }();
  auto* bio = BIO_new(method);
  if (bio) {
    BIO_set_data(bio, this);
    BIO_set_init(bio, 1);
  }
  return bio;
}

int socket::write_out() noexcept {
  gathering_ = false;
  while (write_error_ == 0 && out_written_ < out_.size()) {
    auto n = ::send(
      fd_.get(), out_.data() + out_written_, out_.size() - out_written_,
      MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n >= 0)
      out_written_ += static_cast<std::size_t>(n);
    else if (errno == EAGAIN) {
      // Otherwise sent bytes would pile up when a peer always leaves some unread.
      if (out_written_ >= kept_capacity_max) {
        out_.erase(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(out_written_));
        out_written_ = 0;
      }
      return EAGAIN;
    } else if (errno != EINTR)
      write_error_ = errno;
  }
  out_.clear();
  out_written_ = 0;
  if (out_.capacity() > kept_capacity_max)
    out_.shrink_to_fit();
  return write_error_;
}

} // namespace millrace::net::tls
