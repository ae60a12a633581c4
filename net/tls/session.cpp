// Calls of OpenSSL, each with an empty queue of errors.
#include <millrace/net/tls/record_cutter.hpp>
#include <millrace/net/tls/session.hpp>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <cerrno>

namespace millrace::net::tls {

void session::free_ssl::operator()(ssl_st* ssl) const noexcept { SSL_free(ssl); }

bool session::open(ssl_ctx_st* context, bool connects) {
  ssl_.reset(SSL_new(context));
  if (!ssl_)
    return false;
  if (connects)
    SSL_set_connect_state(ssl_.get());
  else
    SSL_set_accept_state(ssl_.get());
  return true;
}

bool session::use_socket() {
  auto* bio = socket.make_bio();
  if (bio)
    SSL_set_bio(ssl_.get(), bio, bio);
  return bio != nullptr;
}

int session::shake_hands() {
  ERR_clear_error();
  errno = 0;
  return SSL_do_handshake(ssl_.get());
}

int session::read(std::span<std::byte> room, std::size_t& got) {
  while (!room.empty()) {
    std::size_t n = 0;
    ERR_clear_error();
    errno = 0;
    auto outcome = SSL_read_ex(ssl_.get(), room.data(), room.size(), &n);
    if (outcome != 1)
      return outcome;
    got += n;
    room = room.subspan(n);
  }
  return 1;
}

int session::write(std::span<const iovec> parts, std::size_t& taken) {
  record_cutter records{parts};
  auto full = false;
  while (!records.at_end() && !full) {
    socket.gather();
    while (!records.at_end() && socket.unsent_bytes() < record_cutter::batch_bytes) {
      auto part = records.next();
      std::size_t n = 0;
      ERR_clear_error();
      auto outcome = SSL_write_ex(ssl_.get(), part.data(), part.size(), &n);
      if (outcome != 1)
        return outcome;
      taken += n;
    }
    full = socket.write_out() != 0;
  }
  return 1;
}

int session::error_of(int result) const { return SSL_get_error(ssl_.get(), result); }

} // namespace millrace::net::tls
