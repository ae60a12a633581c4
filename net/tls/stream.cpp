// The bytes of a channel under TLS 1.3, and what the session proves about the peer.
#include <millrace/core/assert.hpp>
#include <millrace/net/tls/errors.hpp>
#include <millrace/net/tls/stream.hpp>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace millrace::net::tls {

stream::stream(std::shared_ptr<const context> context, handshake_side side, unique_fd fd)
  : context_(std::move(context)), side_(side), session_(std::move(fd)) {}

stream::~stream() = default;

result<std::unique_ptr<stream>> stream::make(
  std::shared_ptr<const context> context, handshake_side side, unique_fd fd) {
  std::unique_ptr<stream> s{new stream{std::move(context), side, std::move(fd)}};
  auto connects = side == handshake_side::connector;
  if (!s->session_.open(s->context_->native(), connects) || !s->session_.use_socket())
    return fail(errc::internal, "OpenSSL cannot make a session: " + openssl_errors());
  return s;
}

int stream::fd() const noexcept {
  std::lock_guard guard{mutex_};
  return session_.socket.fd();
}

void stream::close() noexcept {
  std::lock_guard guard{mutex_};
  session_.socket.close();
}

result<bool> stream::shake_hands() {
  std::lock_guard guard{mutex_};
  if (!established_) {
    session_.socket.look_again();
    if (auto outcome = session_.shake_hands(); outcome != 1) {
      if (session_.error_of(outcome) != SSL_ERROR_WANT_READ) {
        fault(outcome);
        session_.socket.write_out(); // the alert that tells the peer
        return fail(failure_);
      }
    } else {
      if (auto bad = check_peer(); !bad.ok())
        return fail(bad);
      established_ = true;
    }
  }
  if (auto error = session_.socket.write_out(); error != 0 && error != EAGAIN)
    return fail(status_from_errno(error, "writing"));
  return established_ && session_.socket.unsent_bytes() == 0;
}

// OpenSSL has checked this already; the check here does not depend on its options.
status stream::check_peer() const {
  if (SSL_version(session_.native()) != TLS1_3_VERSION)
    return {errc::protocol_error, "not TLS 1.3"};
  if (!context_->by_certificate())
    return SSL_session_reused(session_.native()) == 1
      ? status{}
      : status{errc::permission_denied, "the other side has not shown that it knows the secret"};
  std::unique_ptr<X509, decltype(&X509_free)> certificate{
    SSL_get1_peer_certificate(session_.native()), X509_free};
  return certificate && SSL_get_verify_result(session_.native()) == X509_V_OK
    ? status{}
    : status{errc::permission_denied, "the other side has shown no valid certificate"};
}

// Keeps the reason why the session broke. OpenSSL's error queue belongs to the thread and is read
// only here.
void stream::fault(int outcome) {
  session_fault f;
  f.openssl_error = session_.error_of(outcome) == SSL_ERROR_SSL ? ERR_peek_error() : 0;
  f.error_number = session_.socket.read_error();
  f.ended = session_.socket.ended();
  f.established = established_;
  f.verify_result = SSL_get_verify_result(session_.native());
  failure_ = explain_fault(*context_, side_, f);
  ERR_clear_error();
}

status stream::vouch_for(const std::string& name) const {
  // A client does not claim the name of a node. Its membership has been checked.
  if (!context_->by_certificate() || name.starts_with(client_prefix))
    return {};
  std::lock_guard guard{mutex_};
  std::unique_ptr<X509, decltype(&X509_free)> certificate{
    SSL_get1_peer_certificate(session_.native()), X509_free};
  constexpr auto flags = X509_CHECK_FLAG_ALWAYS_CHECK_SUBJECT | X509_CHECK_FLAG_NO_WILDCARDS;
  // To OpenSSL a name that begins with a dot matches all names that end in it.
  if (
    certificate && !name.starts_with('.') &&
    X509_check_host(certificate.get(), name.data(), name.size(), flags, nullptr) == 1)
    return {};
  return {
    errc::permission_denied,
    "node {} has a name that is not in its certificate; issue one with that DNS name", name};
}

io_outcome stream::receive(std::span<std::byte> room, std::vector<unique_fd>&) {
  std::lock_guard guard{mutex_};
  if (!failure_.ok())
    return {0, EPROTO, false};
  std::size_t got = 0;
  session_.socket.look_again();
  dry_ = false;
  if (auto outcome = session_.read(room, got); outcome != 1) {
    auto error = session_.error_of(outcome);
    dry_ = error == SSL_ERROR_WANT_READ;
    if (!dry_ && error != SSL_ERROR_ZERO_RETURN)
      fault(outcome);
    // Bytes before the end are returned first; the next call reports the end.
    if (got == 0 && error != SSL_ERROR_ZERO_RETURN)
      return {0, dry_ ? EAGAIN : EPROTO, false};
  }
  if (session_.socket.unsent_bytes() > socket::unsent_bytes_max)
    failure_ = {errc::protocol_error, "it asks for new keys again and again without reading"};
  return {got, 0, false};
}

bool stream::has_unread() const {
  std::lock_guard guard{mutex_};
  return !dry_;
}

io_outcome stream::send(std::span<const iovec> parts, std::span<const int> fds) {
  MILLRACE_ASSERT(fds.empty());
  std::lock_guard guard{mutex_};
  if (!failure_.ok())
    return {0, EPROTO, false};
  if (auto error = session_.socket.write_out(); error != 0)
    return {0, error, false};
  std::size_t taken = 0;
  if (auto outcome = session_.write(parts, taken); outcome != 1) {
    fault(outcome);
    return {taken, EPROTO, false};
  }
  return {taken, 0, false};
}

bool stream::has_unsent() const {
  std::lock_guard guard{mutex_};
  return session_.socket.unsent_bytes() > 0;
}

io_outcome stream::flush() {
  std::lock_guard guard{mutex_};
  return {0, session_.socket.write_out(), false};
}

status stream::explain(int error_number) const {
  std::lock_guard guard{mutex_};
  if (error_number == EPROTO && !failure_.ok())
    return failure_;
  return {errc::peer_lost, std::strerror(error_number)};
}

std::array<std::byte, 32> stream::keying_material(
  std::string_view label, std::span<const std::byte> context) const {
  std::array<std::byte, 32> out{};
  std::lock_guard guard{mutex_};
  auto made = SSL_export_keying_material(
    session_.native(), reinterpret_cast<unsigned char*>(out.data()), out.size(), label.data(),
    label.size(), reinterpret_cast<const unsigned char*>(context.data()), context.size(), 1);
  MILLRACE_ASSERT(made == 1);
  return out;
}

byte_buffer stream::binding() const {
  auto material = keying_material("EXPORTER-millrace-identity", {});
  return {material.begin(), material.end()};
}

std::optional<std::array<std::byte, 32>> stream::export_key(std::string_view label) const {
  return keying_material("EXPORTER-millrace-key", std::as_bytes(std::span{label}));
}

} // namespace millrace::net::tls
