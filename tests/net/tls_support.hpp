// Fakes and helpers of the TLS tests: a member that speaks byte by byte, certificates.
// Used by the tests of this folder.
#pragma once

#include "channel_support.hpp"

#include <millrace/core/log.hpp>
#include <millrace/net/socket/resolver.hpp>
#include <millrace/tests/support/kept_log.hpp>

#include <netinet/in.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <sstream>

namespace millrace::net::testing {

using millrace::testing::kept_log;

inline socket_address where_of(const std::string& address) {
  auto parsed = socket_address::parse(address.substr(std::string{"tls://"}.size()));
  BOOST_REQUIRE(parsed);
  return *parsed;
}

/// A blocking TCP connection, from `source` if one is given.
inline unique_fd tcp_to(const std::string& address, const std::string& source = {}) {
  auto to = where_of(address);
  unique_fd fd{::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0)};
  BOOST_REQUIRE(fd);
  if (!source.empty()) {
    auto from = socket_address::parse(source + ":0");
    BOOST_REQUIRE(from);
    BOOST_REQUIRE(::bind(fd.get(), from->get(), from->size_bytes()) == 0);
  }
  BOOST_REQUIRE(::connect(fd.get(), to.get(), to.size_bytes()) == 0);
  return fd;
}

inline bool write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    auto n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0)
      return false;
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return true;
}

/// Waits until the other side has closed; false if it does not.
inline bool is_closed_by_peer(int fd) {
  while (true) {
    pollfd ready{fd, POLLIN, 0};
    if (::poll(&ready, 1, 30000) != 1)
      return false;
    char room[4096];
    if (::recv(fd, room, sizeof(room), 0) <= 0)
      return true;
  }
}

inline std::span<const std::byte> bytes_in(std::string_view text) {
  return std::as_bytes(std::span{text});
}

/// A client with a TLS session of its own making, which then speaks byte by byte.
class raw_member : public raw_end {
public:
  explicit raw_member(
    const std::string& address, const std::string& source = {},
    std::shared_ptr<const tls::context> context = shared_tls())
    : context_(std::move(context)), fd_(tcp_to(address, source)),
      ssl_(SSL_new(context_->native())) {
    SSL_set_fd(ssl_.get(), fd_.get());
  }

  bool shake_tls() { return SSL_connect(ssl_.get()) == 1; }

  byte_buffer binding() const {
    byte_buffer out(32);
    std::string_view label = "EXPORTER-millrace-identity";
    BOOST_REQUIRE(
      SSL_export_keying_material(
        ssl_.get(), reinterpret_cast<unsigned char*>(out.data()), out.size(), label.data(),
        label.size(), nullptr, 0, 1) == 1);
    return out;
  }

  /// Sends `h` and what `make_proof(our hello, their hello)` gives; true when the service agreed.
  bool shake_hands(
    const hello& h,
    const std::function<byte_buffer(const byte_buffer&, const byte_buffer&)>& make_proof) {
    auto ours = encode(h);
    write(frame_kind::hello, ours);
    auto theirs = read();
    if (!theirs || theirs->kind != frame_kind::hello)
      return false;
    their_hello = theirs->body;
    write(frame_kind::proof, make_proof(ours, theirs->body));
    auto answer = read();
    if (answer && answer->kind == frame_kind::goodbye)
      refused = decode_goodbye(answer->body);
    return answer && answer->kind == frame_kind::proof;
  }
  bool shake_hands(const hello& h = raw_client::own_hello()) {
    return shake_hands(h, [this](auto& ours, auto& theirs) {
      return prove(handshake_side::connector, binding(), ours, theirs);
    });
  }

  int fd() const { return fd_.get(); }
  SSL* ssl() const { return ssl_.get(); }
  byte_buffer their_hello;
  status refused;

private:
  struct free_ssl {
    void operator()(SSL* s) const { SSL_free(s); }
  };

  bool put(std::span<const std::byte> bytes) override {
    std::size_t n = 0;
    return bytes.empty() || SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &n) == 1;
  }
  std::size_t get(std::span<std::byte> room) override {
    timeval patience{30, 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    std::size_t n = 0;
    return SSL_read_ex(ssl_.get(), room.data(), room.size(), &n) == 1 ? n : 0;
  }

  std::shared_ptr<const tls::context> context_;
  unique_fd fd_;
  std::unique_ptr<SSL, free_ssl> ssl_;
};

/// Returns when everything that the loop had to do before is done.
inline void settle(const std::shared_ptr<io_loop>& loop) {
  for (int i = 0; i < 3; ++i) {
    promise<int> p;
    loop->post([p] { p.set(0); });
    p.get_future().get();
  }
}

} // namespace millrace::net::testing
