// A channel's bytes under TLS 1.3, and what the session proves of the peer.
// Made by `connect` and by listeners.
#include <millrace/core/assert.hpp>
#include <millrace/net/tls/errors.hpp>
#include <millrace/net/tls/record_cutter.hpp>
#include <millrace/net/tls/stream.hpp>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace millrace::net::tls {

namespace {

constexpr std::string_view client_prefix = "client:";

} // namespace

void stream::free_ssl::operator()(ssl_st* ssl) const noexcept { SSL_free(ssl); }

stream::stream(std::shared_ptr<const context> context, handshake_side side, unique_fd fd)
  : context_(std::move(context)), side_(side), socket_(std::move(fd)) {}

stream::~stream() = default;

result<std::unique_ptr<stream>> stream::make(
  std::shared_ptr<const context> context, handshake_side side, unique_fd fd) {
  std::unique_ptr<stream> s{new stream{std::move(context), side, std::move(fd)}};
  s->ssl_.reset(SSL_new(s->context_->native()));
  auto* bio = s->ssl_ ? s->socket_.make_bio() : nullptr;
  if (!bio)
    return fail(errc::internal, "OpenSSL cannot make a session: " + openssl_errors());
  SSL_set_bio(s->ssl_.get(), bio, bio);
  if (side == handshake_side::connector)
    SSL_set_connect_state(s->ssl_.get());
  else
    SSL_set_accept_state(s->ssl_.get());
  return s;
}

int stream::fd() const noexcept {
  std::lock_guard guard{mutex_};
  return socket_.fd();
}

void stream::close() noexcept {
  std::lock_guard guard{mutex_};
  socket_.close();
}

// -- the handshake ------------------------------------------------------------------------------

result<bool> stream::shake_hands() {
  std::lock_guard guard{mutex_};
  if (!established_) {
    socket_.look_again();
    ERR_clear_error();
    auto outcome = SSL_do_handshake(ssl_.get());
    if (outcome != 1) {
      if (SSL_get_error(ssl_.get(), outcome) != SSL_ERROR_WANT_READ) {
        fault(outcome);
        socket_.write_out(); // the alert that tells the peer
        return fail(failure_);
      }
    } else {
      if (auto bad = check_peer(); !bad.ok())
        return fail(bad);
      established_ = true;
    }
  }
  if (auto error = socket_.write_out(); error != 0 && error != EAGAIN)
    return fail(status_from_errno(error, "writing"));
  return established_ && socket_.unsent_bytes() == 0;
}

// OpenSSL has checked it already; this holds whatever its options are.
status stream::check_peer() const {
  if (SSL_version(ssl_.get()) != TLS1_3_VERSION)
    return {errc::protocol_error, "not TLS 1.3"};
  if (!context_->by_certificate())
    return SSL_session_reused(ssl_.get()) == 1
      ? status{}
      : status{errc::permission_denied, "the other side has not shown that it knows the secret"};
  std::unique_ptr<X509, decltype(&X509_free)> certificate{
    SSL_get1_peer_certificate(ssl_.get()), X509_free};
  return certificate && SSL_get_verify_result(ssl_.get()) == X509_V_OK
    ? status{}
    : status{errc::permission_denied, "the other side has shown no valid certificate"};
}

// Keeps why the session broke; the queue of OpenSSL's errors is the thread's, and read here only.
void stream::fault(int outcome) {
  session_fault f;
  f.openssl_error = SSL_get_error(ssl_.get(), outcome) == SSL_ERROR_SSL ? ERR_peek_error() : 0;
  f.error_number = socket_.read_error();
  f.ended = socket_.ended();
  f.established = established_;
  f.verify_result = SSL_get_verify_result(ssl_.get());
  failure_ = explain_fault(*context_, side_, f);
  ERR_clear_error();
}

status stream::vouch_for(const std::string& name) const {
  // A client claims no node's name; that it is of the cluster has been checked.
  if (!context_->by_certificate() || name.starts_with(client_prefix))
    return {};
  std::lock_guard guard{mutex_};
  std::unique_ptr<X509, decltype(&X509_free)> certificate{
    SSL_get1_peer_certificate(ssl_.get()), X509_free};
  constexpr auto flags = X509_CHECK_FLAG_ALWAYS_CHECK_SUBJECT | X509_CHECK_FLAG_NO_WILDCARDS;
  // To OpenSSL a name that begins with a dot stands for all names that end so.
  if (
    certificate && !name.starts_with('.') &&
    X509_check_host(certificate.get(), name.data(), name.size(), flags, nullptr) == 1)
    return {};
  return {
    errc::permission_denied,
    "node " + name + " bears a name that is not in its certificate; issue one with that DNS name"};
}

// -- bytes --------------------------------------------------------------------------------------

io_outcome stream::receive(std::span<std::byte> room, std::vector<unique_fd>&) {
  std::lock_guard guard{mutex_};
  if (!failure_.ok())
    return {0, EPROTO, false};
  std::size_t got = 0;
  socket_.look_again();
  dry_ = false;
  while (got < room.size()) {
    std::size_t n = 0;
    ERR_clear_error();
    auto outcome = SSL_read_ex(ssl_.get(), room.data() + got, room.size() - got, &n);
    if (outcome == 1) {
      got += n;
      continue;
    }
    auto error = SSL_get_error(ssl_.get(), outcome);
    dry_ = error == SSL_ERROR_WANT_READ;
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_ZERO_RETURN)
      fault(outcome);
    // What came before the end is handed out first; the next call says the rest.
    if (got > 0 || error == SSL_ERROR_ZERO_RETURN)
      break;
    return {0, dry_ ? EAGAIN : EPROTO, false};
  }
  if (socket_.unsent_bytes() > socket::unsent_bytes_max)
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
  if (auto error = socket_.write_out(); error != 0)
    return {0, error, false};
  record_cutter records{parts};
  std::size_t taken = 0;
  auto error = 0;
  while (!records.at_end() && error == 0) {
    socket_.gather();
    auto piece = records.next();
    std::size_t n = 0;
    ERR_clear_error();
    auto outcome = SSL_write_ex(ssl_.get(), piece.data(), piece.size(), &n);
    if (outcome != 1) {
      fault(outcome);
      return {taken, EPROTO, false};
    }
    taken += n;
    if (records.at_end() || socket_.unsent_bytes() >= record_cutter::batch_bytes)
      error = socket_.write_out();
  }
  return {taken, 0, false};
}

bool stream::has_unsent() const {
  std::lock_guard guard{mutex_};
  return socket_.unsent_bytes() > 0;
}

io_outcome stream::flush() {
  std::lock_guard guard{mutex_};
  return {0, socket_.write_out(), false};
}

status stream::explain(int error_number) const {
  std::lock_guard guard{mutex_};
  if (error_number == EPROTO && !failure_.ok())
    return failure_;
  return {errc::peer_lost, std::strerror(error_number)};
}

// -- keys ---------------------------------------------------------------------------------------

std::array<std::byte, 32> stream::keying_material(
  std::string_view label, std::span<const std::byte> context) const {
  std::array<std::byte, 32> out{};
  std::lock_guard guard{mutex_};
  auto made = SSL_export_keying_material(
    ssl_.get(), reinterpret_cast<unsigned char*>(out.data()), out.size(), label.data(),
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
