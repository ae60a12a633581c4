// Translates OpenSSL's reasons into what the operator has to do.
#include <millrace/net/tls/errors.hpp>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <array>
#include <cstring>

namespace millrace::net::tls {

namespace {

std::string words_of(unsigned long error) {
  auto* reason = ERR_reason_error_string(error);
  if (reason)
    return reason;
  std::array<char, 256> text{};
  ERR_error_string_n(error, text.data(), text.size());
  return text.data();
}

status secrets_differ(const context& context) {
  return {
    errc::permission_denied,
    "the other side has a different secret than the one in {}; give every node and client a copy "
    "of the same file",
    context.options().secret};
}

status modes_differ(const context& context) {
  return {
    errc::permission_denied,
    context.by_certificate()
      ? "no common way to prove membership: this side uses certificates, the other one perhaps the "
        "cluster's secret; configure `security` alike on every node and client"
      : "no common way to prove membership: this side uses the cluster's secret, the other one "
        "perhaps certificates or none; configure `security` alike on every node and client"};
}

status with_secret(const context& context, int reason, const std::string& words) {
  switch (reason) {
  case SSL_R_BINDER_DOES_NOT_VERIFY:
  case SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER:
  case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
  case SSL_R_SSLV3_ALERT_BAD_RECORD_MAC:
  case SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC:
  case SSL_R_DIGEST_CHECK_FAILED:
    return secrets_differ(context);
  case SSL_R_NO_SHARED_CIPHER:
  case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
  case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
  case SSL_R_CERTIFICATE_VERIFY_FAILED:
  case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
  case SSL_R_TLSV13_ALERT_MISSING_EXTENSION:
    return modes_differ(context);
  default:
    return {errc::protocol_error, "the TLS handshake failed: " + words};
  }
}

status with_certificates(
  const context& context, int reason, long verify_result, const std::string& words) {
  auto& ours = context.options();
  switch (reason) {
  case SSL_R_CERTIFICATE_VERIFY_FAILED:
    return {
      errc::permission_denied,
      "the other side's certificate is not valid under the authority in {}: {}", ours.authority,
      X509_verify_cert_error_string(verify_result)};
  case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
    return {
      errc::permission_denied, "the other side has no certificate; configure `security` alike"};
  case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
  case SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE:
  case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
  case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
  case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
  case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    return {
      errc::permission_denied, "the other side does not accept the certificate in {}: {}",
      ours.certificate, words};
  case SSL_R_NO_SHARED_CIPHER:
  case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
  case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
  case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
    return modes_differ(context);
  default:
    return {errc::protocol_error, "the TLS handshake failed: " + words};
  }
}

bool speaks_something_else(int reason) {
  return reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST ||
    reason == SSL_R_HTTPS_PROXY_REQUEST || reason == SSL_R_UNSUPPORTED_PROTOCOL ||
    reason == SSL_R_TLSV1_ALERT_PROTOCOL_VERSION;
}

} // namespace

status explain_fault(const context& context, handshake_side side, const session_fault& fault) {
  if (fault.openssl_error == 0) {
    auto how = fault.error_number != 0 ? std::string{std::strerror(fault.error_number)}
      : fault.ended                    ? std::string{"it closed the connection"}
                                       : std::string{"OpenSSL gives no reason"};
    if (fault.established)
      return {errc::peer_lost, how};
    return {
      errc::peer_lost, "{} during the TLS handshake{}", how,
      side == handshake_side::connector ? "; it may serve something else, or be overloaded" : ""};
  }
  auto reason = ERR_GET_REASON(fault.openssl_error);
  auto words = words_of(fault.openssl_error);
  if (speaks_something_else(reason))
    return {errc::protocol_error, "the other side does not speak TLS 1.3: " + words};
  return context.by_certificate() ? with_certificates(context, reason, fault.verify_result, words)
    : fault.established           ? status{errc::peer_lost, "the TLS session broke: " + words}
                                  : with_secret(context, reason, words);
}

std::string openssl_errors() {
  std::string out;
  while (auto error = ERR_get_error())
    out += (out.empty() ? "" : ", ") + words_of(error);
  return out.empty() ? "no reason given" : out;
}

} // namespace millrace::net::tls
