// Configures OpenSSL: TLS 1.3 only, both sides authenticated, no session resumed.
#include <millrace/net/tls/cluster_secret.hpp>
#include <millrace/net/tls/context.hpp>
#include <millrace/net/tls/errors.hpp>
#include <millrace/net/tls/private_file.hpp>

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sodium.h>

#include <array>
#include <cstring>

namespace millrace::net::tls {

namespace {

// The identity of the pre-shared key on the wire; it reveals nothing about the secret.
constexpr std::string_view psk_name = "millrace cluster 1";
constexpr std::size_t key_file_bytes_max = 64 * 1024;
// The pre-shared key is bound to SHA-256, so only suites with SHA-256 fit.
constexpr auto psk_suites = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";
constexpr unsigned char session_context[]{0x6d};
constexpr unsigned char psk_suite[]{0x13, 0x01}; // TLS_AES_128_GCM_SHA256

template <class T, void (*Free)(T*)>
struct freed {
  void operator()(T* p) const noexcept { Free(p); }
};
using session_ptr = std::unique_ptr<SSL_SESSION, freed<SSL_SESSION, SSL_SESSION_free>>;

class context_impl final : public context {
public:
  explicit context_impl(const context_options& options) : options_(options) {}
  ~context_impl() override { sodium_memzero(psk_.data(), psk_.size()); }

  const context_options& options() const noexcept override { return options_; }
  SSL_CTX* native() const noexcept override { return native_.get(); }
  const cluster_mark& mark() const noexcept override { return mark_; }

  status prepare() {
    native_.reset(SSL_CTX_new(TLS_method()));
    if (!native_)
      return {errc::internal, "OpenSSL cannot be set up: " + openssl_errors()};
    auto* n = native_.get();
    SSL_CTX_set_min_proto_version(n, TLS1_3_VERSION);
    SSL_CTX_set_max_proto_version(n, TLS1_3_VERSION);
    // The channel's goodbye, not a close alert, marks an orderly end.
    SSL_CTX_set_options(n, SSL_OP_NO_TICKET | SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_num_tickets(n, 0);
    SSL_CTX_set_session_cache_mode(n, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_session_id_context(n, session_context, sizeof(session_context));
    SSL_CTX_set_mode(n, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_read_ahead(n, 1);
    SSL_CTX_set_app_data(n, this);
    return by_certificate() ? use_certificates() : use_secret();
  }

private:
  status use_secret();
  status use_certificates();
  status use_key();
  session_ptr make_session(SSL* ssl) const;
  static int on_client_asks(
    SSL* ssl, const EVP_MD* md, const unsigned char** name, std::size_t* size,
    SSL_SESSION** session);
  static int on_server_asks(
    SSL* ssl, const unsigned char* name, std::size_t size, SSL_SESSION** session);
  static const context_impl& of(SSL* ssl) {
    return *static_cast<const context_impl*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
  }

  const context_options options_;
  std::unique_ptr<SSL_CTX, freed<SSL_CTX, SSL_CTX_free>> native_;
  std::array<unsigned char, 32> psk_{};
  cluster_mark mark_{};
};

status context_impl::use_secret() {
  auto secret = load_cluster_secret(options_.secret);
  if (!secret)
    return secret.error();
  auto derive = [&](std::string_view purpose, auto& out) {
    crypto_generichash(
      out.data(), out.size(), reinterpret_cast<const unsigned char*>(purpose.data()),
      purpose.size(), secret->data(), secret->size());
  };
  derive("millrace tls psk 1", psk_);
  derive("millrace cluster mark 1", mark_);
  sodium_memzero(secret->data(), secret->size());
  auto* n = native_.get();
  if (SSL_CTX_set_ciphersuites(n, psk_suites) != 1)
    return {errc::unsupported, "OpenSSL lacks the ciphers needed: " + openssl_errors()};
  SSL_CTX_set_psk_use_session_callback(n, on_client_asks);
  SSL_CTX_set_psk_find_session_callback(n, on_server_asks);
  // No authority is set, so a server that offers a certificate instead of the secret is refused.
  SSL_CTX_set_verify(n, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return {};
}

session_ptr context_impl::make_session(SSL* ssl) const {
  session_ptr session{SSL_SESSION_new()};
  auto* suite = SSL_CIPHER_find(ssl, psk_suite);
  auto made = session && suite &&
    SSL_SESSION_set1_master_key(session.get(), psk_.data(), psk_.size()) == 1 &&
    SSL_SESSION_set1_id_context(session.get(), session_context, sizeof(session_context)) == 1 &&
    SSL_SESSION_set_cipher(session.get(), suite) == 1 &&
    SSL_SESSION_set_protocol_version(session.get(), TLS1_3_VERSION) == 1;
  return made ? std::move(session) : nullptr;
}

int context_impl::on_client_asks(
  SSL* ssl, const EVP_MD* md, const unsigned char** name, std::size_t* size,
  SSL_SESSION** session) {
  *session = nullptr;
  auto made = of(ssl).make_session(ssl);
  // After a HelloRetryRequest the digest is fixed.
  if (!made || (md && md != SSL_CIPHER_get_handshake_digest(SSL_SESSION_get0_cipher(made.get()))))
    return 0;
  *name = reinterpret_cast<const unsigned char*>(psk_name.data());
  *size = psk_name.size();
  *session = made.release();
  return 1;
}

int context_impl::on_server_asks(
  SSL* ssl, const unsigned char* name, std::size_t size, SSL_SESSION** session) {
  *session = nullptr;
  if (size != psk_name.size() || std::memcmp(name, psk_name.data(), size) != 0)
    return 1; // not ours: without certificates the handshake ends there
  *session = of(ssl).make_session(ssl).release();
  return *session ? 1 : 0;
}

status context_impl::use_certificates() {
  auto* n = native_.get();
  if (SSL_CTX_use_certificate_chain_file(n, options_.certificate.c_str()) != 1)
    return {
      errc::corrupt_data, "no certificate can be read from {}: {}", options_.certificate,
      openssl_errors()};
  if (auto bad = use_key(); !bad.ok())
    return bad;
  if (SSL_CTX_load_verify_file(n, options_.authority.c_str()) != 1)
    return {
      errc::corrupt_data, "no authority's certificate can be read from {}: {}", options_.authority,
      openssl_errors()};
  SSL_CTX_set_verify(n, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return {};
}

status context_impl::use_key() {
  auto text = read_private_file(options_.key, "the private key", key_file_bytes_max);
  if (!text)
    return text.error();
  std::unique_ptr<BIO, freed<BIO, BIO_free_all>> bio{
    BIO_new_mem_buf(text->data(), static_cast<int>(text->size()))};
  // With an empty pass phrase OpenSSL does not ask the terminal.
  std::unique_ptr<EVP_PKEY, freed<EVP_PKEY, EVP_PKEY_free>> key{
    PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, const_cast<char*>(""))};
  sodium_memzero(text->data(), text->size());
  if (!key)
    return {
      errc::corrupt_data, "no private key (in PEM, without pass phrase) can be read from {}: {}",
      options_.key, openssl_errors()};
  if (SSL_CTX_use_PrivateKey(native_.get(), key.get()) != 1)
    return {
      errc::invalid_argument, "the private key in {} does not belong to the certificate in {}: {}",
      options_.key, options_.certificate, openssl_errors()};
  return {};
}

status check(const context_options& o) {
  auto given = !o.certificate.empty() + !o.key.empty() + !o.authority.empty();
  if (given != 0 && given != 3)
    return {
      errc::invalid_argument,
      "certificates need all of `security.certificate`, `security.key` and `security.authority`"};
  if (given == 0 && o.secret.empty())
    return {
      errc::invalid_argument,
      "nothing proves who may connect over the network: set `security.secret` to a file made by "
      "`millrace cluster secret`, or certificates"};
  return {};
}

} // namespace

result<std::shared_ptr<const context>> context::open(const context_options& options) {
  if (auto bad = check(options); !bad.ok())
    return fail(bad);
  auto made = std::make_shared<context_impl>(options);
  if (auto bad = made->prepare(); !bad.ok())
    return fail(bad);
  return made;
}

} // namespace millrace::net::tls
