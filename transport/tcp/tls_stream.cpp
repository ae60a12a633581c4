// OpenSSL on a non-blocking socket. No certificates: both sides proved themselves when the stream was admitted.
#include <millrace/net/tls/record_cutter.hpp>
#include <millrace/net/tls/socket.hpp>
#include <millrace/transport/tcp/tls_stream.hpp>

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

constexpr std::size_t read_ahead_bytes = 64u << 10; // what one call reads at most
constexpr std::string_view identity = "millrace stream";
// Names the hash of the key; either cipher goes with it.
constexpr unsigned char aes_128_gcm_sha256[] = {0x13, 0x01};

const char* suites(bulk_cipher preferred) noexcept {
  return preferred == bulk_cipher::aes ? "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
                                       : "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256";
}

struct free_context {
  void operator()(SSL_CTX* c) const noexcept { SSL_CTX_free(c); }
};
struct free_session {
  void operator()(SSL* s) const noexcept { SSL_free(s); }
};

/// *Problem*: OpenSSL's own socket functions, which the handshake needs so that the kernel may take over, write in a
/// way that kills the process when the other end is gone. While one of these lives, this thread gets no such signal.
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

class tls_stream : public byte_stream {
public:
  static result<std::unique_ptr<byte_stream>> make(
    net::unique_fd fd, const net::channel_key& key, bool connects, bulk_cipher preferred) {
    std::unique_ptr<tls_stream> s{new tls_stream{std::move(fd), key}};
    if (auto bad = s->open(connects, preferred); !bad.ok())
      return fail(bad);
    return s;
  }

  int fd() const noexcept override { return socket_.fd(); }

  moved_bytes send(std::span<const iovec> parts, bool more) noexcept override {
    std::lock_guard guard{mutex_};
    if (auto error_number = shake_hands(); error_number != 0)
      return {0, error_number, false};
    if (kernel_encrypts_)
      return send_some(socket_.fd(), parts, more);
    if (auto error_number = socket_.write_out(); error_number != 0)
      return {0, error_number, false};
    return encrypt(parts);
  }

  int flush() noexcept override {
    std::lock_guard guard{mutex_};
    return socket_.write_out();
  }

  moved_bytes receive(std::span<const iovec> parts) noexcept override {
    std::lock_guard guard{mutex_};
    if (auto error_number = shake_hands(); error_number != 0)
      return {0, error_number, error_number == EAGAIN};
    if (socket_.unsent_bytes() > net::tls::socket::unsent_bytes_max)
      return {0, EPROTO, false};
    // With the kernel's encryption the library answers the peer by plain writes of its own.
    std::optional<no_broken_pipe> quiet;
    if (kernel_encrypts_)
      quiet.emplace();
    socket_.look_again();
    moved_bytes got;
    for (auto& p : parts) {
      for (std::size_t at = 0; at < p.iov_len;) {
        std::size_t n = 0;
        ERR_clear_error();
        errno = 0;
        auto ok =
          SSL_read_ex(ssl_.get(), static_cast<std::byte*>(p.iov_base) + at, p.iov_len - at, &n);
        if (ok != 1)
          return ended(got, ok);
        at += n;
        got.size_bytes += n;
      }
    }
    return got;
  }

  void shut() noexcept override { ::shutdown(socket_.fd(), SHUT_RDWR); }

private:
  tls_stream(net::unique_fd fd, const net::channel_key& key) : socket_(std::move(fd)), key_(key) {}

  status open(bool connects, bulk_cipher preferred) {
    context_.reset(SSL_CTX_new(TLS_method()));
    if (
      !context_ || SSL_CTX_set_min_proto_version(context_.get(), TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context_.get(), suites(preferred)) != 1 ||
      SSL_CTX_set_num_tickets(context_.get(), 0) != 1)
      return cannot();
    SSL_CTX_set_options(
      context_.get(),
      SSL_OP_ENABLE_KTLS | SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA |
        // A stream may end without words: its units say whether they are whole.
        SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_default_read_buffer_len(context_.get(), read_ahead_bytes);
    ssl_.reset(SSL_new(context_.get()));
    if (!ssl_ || SSL_set_fd(ssl_.get(), socket_.fd()) != 1)
      return cannot();
    SSL_set_app_data(ssl_.get(), this);
    if (connects) {
      SSL_set_psk_use_session_callback(ssl_.get(), use_key);
      SSL_set_connect_state(ssl_.get());
    } else {
      SSL_set_psk_find_session_callback(ssl_.get(), find_key);
      SSL_set_accept_state(ssl_.get());
    }
    return {};
  }

  static status cannot() {
    char text[256] = "";
    ERR_error_string_n(ERR_get_error(), text, sizeof(text));
    return {errc::unsupported, std::string{"TLS 1.3 for a stream: "} + text};
  }

  static SSL_SESSION* session_of(SSL* ssl) {
    auto* self = static_cast<tls_stream*>(SSL_get_app_data(ssl));
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

  // 0 once it is over; EAGAIN while it waits for the other side.
  int shake_hands() noexcept {
    if (established_)
      return 0;
    no_broken_pipe quiet;
    ERR_clear_error();
    errno = 0;
    if (auto ok = SSL_do_handshake(ssl_.get()); ok != 1) {
      auto system = errno;
      auto error = SSL_get_error(ssl_.get(), ok);
      if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE)
        return EAGAIN;
      return error == SSL_ERROR_SYSCALL && system != 0 ? system : EPROTO;
    }
    established_ = true;
    kernel_encrypts_ = BIO_get_ktls_send(SSL_get_wbio(ssl_.get()));
    return kernel_encrypts_ || use_own_socket() ? 0 : ENOMEM;
  }

  // Several records with each call instead of one or two calls for each record.
  bool use_own_socket() noexcept {
    auto* bio = socket_.make_bio();
    if (!bio)
      return false;
    SSL_set_bio(ssl_.get(), bio, bio);
    SSL_set_read_ahead(ssl_.get(), 1);
    return true;
  }

  moved_bytes encrypt(std::span<const iovec> parts) noexcept {
    net::tls::record_cutter records{parts};
    moved_bytes out;
    while (!records.at_end() && socket_.unsent_bytes() == 0 && socket_.write_error() == 0) {
      socket_.gather();
      while (!records.at_end() && socket_.unsent_bytes() < net::tls::record_cutter::batch_bytes) {
        auto piece = records.next();
        std::size_t n = 0;
        ERR_clear_error();
        if (auto ok = SSL_write_ex(ssl_.get(), piece.data(), piece.size(), &n); ok != 1)
          return {out.size_bytes, EPROTO, false};
        out.size_bytes += n;
      }
      socket_.write_out();
    }
    return out;
  }

  moved_bytes ended(moved_bytes got, int returned) noexcept {
    auto system = errno;
    auto error = SSL_get_error(ssl_.get(), returned);
    got.drained = error == SSL_ERROR_WANT_READ;
    // What came before an error is given out first; the error comes again.
    if (got.size_bytes > 0 || error == SSL_ERROR_ZERO_RETURN || socket_.ended())
      return got;
    // The library reads the socket itself where the kernel encrypts.
    auto failed = kernel_encrypts_ && error == SSL_ERROR_SYSCALL ? system : socket_.read_error();
    got.error_number = got.drained ? EAGAIN : failed != 0 ? failed : EPROTO;
    return got;
  }

  net::tls::socket socket_;
  const net::channel_key key_;
  std::unique_ptr<SSL_CTX, free_context> context_;
  std::mutex mutex_; // the library lets one thread at a time use a session
  std::unique_ptr<SSL, free_session> ssl_;
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

result<std::unique_ptr<byte_stream>> make_tls_stream(
  net::unique_fd fd, const net::channel_key& key, bool connects, bulk_cipher preferred) {
  return tls_stream::make(std::move(fd), key, connects, preferred);
}

} // namespace millrace::transport::tcp
