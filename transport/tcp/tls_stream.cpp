// OpenSSL on a non-blocking socket. No certificates: both sides proved themselves when the stream was admitted.
#include <millrace/transport/tcp/tls_stream.hpp>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <vector>

namespace millrace::transport::tcp {

namespace {

constexpr std::size_t staged_bytes_max = 64u << 10;
constexpr std::string_view identity = "millrace stream";
constexpr unsigned char aes_128_gcm_sha256[] = {0x13, 0x01};

struct free_context {
  void operator()(SSL_CTX* c) const noexcept { SSL_CTX_free(c); }
};
struct free_session {
  void operator()(SSL* s) const noexcept { SSL_free(s); }
};

/// *Problem*: OpenSSL writes to sockets in a way that kills the process when the other end is gone. While one of
/// these lives, this thread gets no such signal.
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
    unique_fd fd, const channel_key& key, bool connects) {
    std::unique_ptr<tls_stream> s{new tls_stream{std::move(fd), key}};
    if (auto bad = s->open(connects); !bad.ok())
      return fail(bad);
    return s;
  }

  int fd() const noexcept override { return fd_.get(); }

  // *Problem*: what was given to OpenSSL once must be given again until it is gone, but by then its memory may be
  // withdrawn. So bytes are gathered here first; encrypting copies them anyway.
  moved_bytes send(std::span<const iovec> parts, bool) noexcept override {
    std::lock_guard guard{mutex_};
    if (auto error_number = flush_locked(); error_number != 0)
      return {0, error_number, false};
    for (auto& p : parts) {
      auto length = std::min(p.iov_len, staged_bytes_max - staged_end_);
      std::memcpy(staged_.data() + staged_end_, p.iov_base, length);
      staged_end_ += length;
      if (length < p.iov_len)
        break;
    }
    auto taken = staged_end_;
    auto error_number = flush_locked();
    return {taken, error_number == EAGAIN ? 0 : error_number, false};
  }

  int flush() noexcept override {
    std::lock_guard guard{mutex_};
    return flush_locked();
  }

  moved_bytes receive(std::span<const iovec> parts) noexcept override {
    std::lock_guard guard{mutex_};
    no_broken_pipe quiet;
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

  void shut() noexcept override { ::shutdown(fd_.get(), SHUT_RDWR); }

private:
  tls_stream(unique_fd fd, const channel_key& key) : fd_(std::move(fd)), key_(key) {}

  status open(bool connects) {
    context_.reset(SSL_CTX_new(TLS_method()));
    if (
      !context_ || SSL_CTX_set_min_proto_version(context_.get(), TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(context_.get(), "TLS_AES_128_GCM_SHA256") != 1 ||
      SSL_CTX_set_num_tickets(context_.get(), 0) != 1)
      return cannot();
    SSL_CTX_set_options(context_.get(), SSL_OP_ENABLE_KTLS);
    ssl_.reset(SSL_new(context_.get()));
    if (!ssl_ || SSL_set_fd(ssl_.get(), fd_.get()) != 1)
      return cannot();
    SSL_set_mode(
      ssl_.get(),
      SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
        SSL_MODE_RELEASE_BUFFERS);
    SSL_set_app_data(ssl_.get(), this);
    if (connects) {
      SSL_set_psk_use_session_callback(ssl_.get(), use_key);
      SSL_set_connect_state(ssl_.get());
    } else {
      SSL_set_psk_find_session_callback(ssl_.get(), find_key);
      SSL_set_accept_state(ssl_.get());
    }
    staged_.resize(staged_bytes_max);
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

  // The kernel's error number for the library's. EAGAIN also while the handshake waits for the other side.
  int error_of(int returned) noexcept {
    auto system = errno;
    switch (SSL_get_error(ssl_.get(), returned)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      return EAGAIN;
    case SSL_ERROR_SYSCALL:
      return system != 0 && system != EAGAIN ? system : ECONNRESET;
    default:
      return EPROTO;
    }
  }

  moved_bytes ended(moved_bytes got, int returned) noexcept {
    if (SSL_get_error(ssl_.get(), returned) == SSL_ERROR_ZERO_RETURN)
      return got;
    auto error_number = error_of(returned);
    got.drained = error_number == EAGAIN;
    // What came before an error is given out first; the error comes again.
    got.error_number = got.size_bytes > 0 ? 0 : error_number;
    return got;
  }

  int flush_locked() noexcept {
    if (staged_begin_ == staged_end_)
      return 0;
    no_broken_pipe quiet;
    while (staged_begin_ < staged_end_) {
      std::size_t n = 0;
      ERR_clear_error();
      errno = 0;
      auto ok =
        SSL_write_ex(ssl_.get(), staged_.data() + staged_begin_, staged_end_ - staged_begin_, &n);
      if (ok != 1)
        return error_of(ok);
      staged_begin_ += n;
    }
    staged_begin_ = staged_end_ = 0;
    return 0;
  }

  unique_fd fd_;
  const channel_key key_;
  std::unique_ptr<SSL_CTX, free_context> context_;
  std::mutex mutex_; // the library lets one thread at a time use a session
  std::unique_ptr<SSL, free_session> ssl_;
  std::vector<std::byte> staged_;
  std::size_t staged_begin_ = 0;
  std::size_t staged_end_ = 0;
};

} // namespace

result<std::unique_ptr<byte_stream>> make_tls_stream(
  unique_fd fd, const channel_key& key, bool connects) {
  return tls_stream::make(std::move(fd), key, connects);
}

} // namespace millrace::transport::tcp
