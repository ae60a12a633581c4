// OpenSSL on a non-blocking socket. It needs no certificates, since both sides proved themselves
// when the stream was admitted.
#include <millrace/net/tls/errors.hpp>
#include <millrace/net/tls/session.hpp>
#include <millrace/transport/tcp/encrypted_socket.hpp>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <sys/socket.h>

#include <cerrno>
#include <csignal>
#include <mutex>
#include <optional>

namespace millrace::transport::tcp {

namespace {

constexpr std::size_t read_ahead_bytes = 64u << 10; // the most that one call reads
constexpr std::string_view identity = "millrace stream";
// The number names the hash that belongs to the key. The key works with either cipher.
constexpr unsigned char aes_128_gcm_sha256[] = {0x13, 0x01};

const char* suites(bulk_cipher preferred) noexcept {
  return preferred == bulk_cipher::aes ? "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
                                       : "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256";
}

struct free_context {
  void operator()(SSL_CTX* c) const noexcept { SSL_CTX_free(c); }
};

/// Keeps SIGPIPE from this thread while it lives.
///
/// *Problem*: the handshake needs OpenSSL's own socket functions, so that the kernel can take over.
/// They write in a way that kills the process when the other end is gone.
class no_broken_pipe {
public:
  no_broken_pipe() noexcept {
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    sigemptyset(&only_);
    sigaddset(&only_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &only_, &before_);
  }
  ~no_broken_pipe() {
    sigset_t pending;
    sigpending(&pending);
    timespec at_once{};
    if (!was_pending_ && sigismember(&pending, SIGPIPE) == 1)
      sigtimedwait(&only_, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  no_broken_pipe(const no_broken_pipe&) = delete;

private:
  bool was_pending_ = false;
  sigset_t only_;
  sigset_t before_;
};

class encrypted_socket : public bulk_socket {
public:
  static result<std::unique_ptr<bulk_socket>> make(
    net::unique_fd fd, const net::channel_key& key, bool connects, bulk_cipher preferred) {
    std::unique_ptr<encrypted_socket> s{new encrypted_socket{std::move(fd), key}};
    if (auto bad = s->open(connects, preferred); !bad.ok())
      return fail(bad);
    return s;
  }

  int fd() const noexcept override { return session_.socket.fd(); }

  moved_bytes send(std::span<const iovec> parts, bool more) noexcept override {
    std::lock_guard guard{mutex_};
    if (auto error_number = shake_hands(); error_number != 0)
      return {0, error_number, false};
    if (kernel_encrypts_)
      return send_some(fd(), parts, more);
    if (auto error_number = session_.socket.write_out(); error_number != 0)
      return {0, error_number, false};
    moved_bytes out;
    if (session_.write(parts, out.size_bytes) != 1)
      out.error_number = EPROTO;
    return out;
  }

  int flush() noexcept override {
    std::lock_guard guard{mutex_};
    return session_.socket.write_out();
  }

  moved_bytes receive(std::span<const iovec> parts) noexcept override {
    std::lock_guard guard{mutex_};
    if (auto error_number = shake_hands(); error_number != 0)
      return {0, error_number, error_number == EAGAIN};
    if (session_.socket.unsent_bytes() > net::tls::socket::unsent_bytes_max)
      return {0, EPROTO, false};
    // Where the kernel encrypts, the library answers the peer with plain writes of its own.
    std::optional<no_broken_pipe> quiet;
    if (kernel_encrypts_)
      quiet.emplace();
    session_.socket.look_again();
    moved_bytes got;
    for (auto& p : parts) {
      auto outcome =
        session_.read({static_cast<std::byte*>(p.iov_base), p.iov_len}, got.size_bytes);
      if (outcome != 1)
        return ended(got, outcome);
    }
    return got;
  }

  void shut() noexcept override { ::shutdown(session_.socket.fd(), SHUT_RDWR); }

private:
  encrypted_socket(net::unique_fd fd, const net::channel_key& key)
    : key_(key), session_(std::move(fd)) {}

  status open(bool connects, bulk_cipher preferred) {
    context_.reset(SSL_CTX_new(TLS_method()));
    if (
      !context_ || SSL_CTX_set_min_proto_version(context_.get(), TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context_.get(), suites(preferred)) != 1 ||
      SSL_CTX_set_num_tickets(context_.get(), 0) != 1)
      return cannot();
    // A stream may end without a TLS alert, since its units show whether they are whole.
    SSL_CTX_set_options(
      context_.get(),
      SSL_OP_ENABLE_KTLS | SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA |
        SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_default_read_buffer_len(context_.get(), read_ahead_bytes);
    if (!session_.open(context_.get(), connects))
      return cannot();
    // The kernel can take over only from OpenSSL's own socket functions.
    auto* ssl = session_.native();
    if (SSL_set_fd(ssl, fd()) != 1)
      return cannot();
    SSL_set_app_data(ssl, this);
    if (connects)
      SSL_set_psk_use_session_callback(ssl, use_key);
    else
      SSL_set_psk_find_session_callback(ssl, find_key);
    return {};
  }

  static status cannot() {
    return {errc::unsupported, "TLS 1.3 for a stream: " + net::tls::openssl_errors()};
  }

  static SSL_SESSION* session_of(SSL* ssl) {
    auto* self = static_cast<encrypted_socket*>(SSL_get_app_data(ssl));
    auto* made = SSL_SESSION_new();
    const auto* cipher = SSL_CIPHER_find(ssl, aes_128_gcm_sha256);
    if (
      made && cipher &&
      SSL_SESSION_set1_master_key(
        made, reinterpret_cast<const unsigned char*>(self->key_.data()), self->key_.size()) == 1 &&
      SSL_SESSION_set_cipher(made, cipher) == 1 &&
      SSL_SESSION_set_protocol_version(made, TLS1_3_VERSION) == 1)
      return made;
    SSL_SESSION_free(made);
    return nullptr;
  }

  static int use_key(
    SSL* ssl, const EVP_MD*, const unsigned char** id, std::size_t* id_bytes, SSL_SESSION** out) {
    *out = session_of(ssl);
    *id = reinterpret_cast<const unsigned char*>(identity.data());
    *id_bytes = identity.size();
    return *out != nullptr ? 1 : 0;
  }

  static int find_key(SSL* ssl, const unsigned char* id, std::size_t id_bytes, SSL_SESSION** out) {
    *out = nullptr;
    if (std::string_view{reinterpret_cast<const char*>(id), id_bytes} != identity)
      return 1;
    *out = session_of(ssl);
    return *out != nullptr ? 1 : 0;
  }

  // Returns 0 once the handshake is over, EAGAIN while it waits for the other side.
  int shake_hands() noexcept {
    if (established_)
      return 0;
    no_broken_pipe quiet;
    if (auto outcome = session_.shake_hands(); outcome != 1) {
      auto system = errno;
      auto error = session_.error_of(outcome);
      if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE)
        return EAGAIN;
      return error == SSL_ERROR_SYSCALL && system != 0 ? system : EPROTO;
    }
    established_ = true;
    kernel_encrypts_ = BIO_get_ktls_send(SSL_get_wbio(session_.native()));
    return kernel_encrypts_ || use_own_socket() ? 0 : ENOMEM;
  }

  // Reads and writes several records with each call instead of one record with one or two calls.
  bool use_own_socket() noexcept {
    SSL_set_read_ahead(session_.native(), 1);
    return session_.use_socket();
  }

  moved_bytes ended(moved_bytes got, int returned) noexcept {
    auto system = errno;
    auto error = session_.error_of(returned);
    got.drained = error == SSL_ERROR_WANT_READ;
    // The bytes before an error are returned first. The next call gets the error again.
    if (got.size_bytes > 0 || error == SSL_ERROR_ZERO_RETURN || session_.socket.ended())
      return got;
    // Where the kernel encrypts, the library reads the socket itself.
    auto failed =
      kernel_encrypts_ && error == SSL_ERROR_SYSCALL ? system : session_.socket.read_error();
    got.error_number = got.drained ? EAGAIN : failed != 0 ? failed : EPROTO;
    return got;
  }

  const net::channel_key key_;
  std::unique_ptr<SSL_CTX, free_context> context_;
  std::mutex mutex_; // the library lets one thread at a time use a session
  net::tls::session session_;
  bool established_ = false;
  bool kernel_encrypts_ = false;
};

} // namespace

bulk_cipher fast_cipher() noexcept {
#if defined(__x86_64__)
  static const bool aes = __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
  return aes ? bulk_cipher::aes : bulk_cipher::chacha;
#else
  return bulk_cipher::aes;
#endif
}

result<std::unique_ptr<bulk_socket>> make_encrypted_socket(
  net::unique_fd fd, const net::channel_key& key, bool connects, bulk_cipher preferred) {
  return encrypted_socket::make(std::move(fd), key, connects, preferred);
}

} // namespace millrace::transport::tcp
