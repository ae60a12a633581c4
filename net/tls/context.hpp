// What authenticates the members of a cluster to each other: a secret or certificates. Made by each
// node and client; channels and listeners get it as `channel_options::tls`.
#pragma once

#include <millrace/core/status.hpp>
#include <millrace/net/channel/channel.hpp>

#include <memory>
#include <string>

struct ssl_ctx_st;

namespace millrace::net::tls {

struct context_options {
  /// The file of the cluster's secret, which TLS 1.3 uses as pre-shared key.
  std::string secret;
  /// PEM files, all three or none; with them, the secret is not used. Each side checks the
  /// certificate of the other against the authority, and that it contains the node's name (as DNS
  /// name or common name).
  std::string certificate;
  std::string key;
  std::string authority;
};

/// Immutable. Threads: any.
class context {
public:
  virtual ~context() = default;

  /// Reads the files.
  /// Errors, all with the name of the file: `invalid_argument` when neither a secret nor all three
  /// PEM files are given; `not_found`; `permission_denied` for a secret or key that others can
  /// read; `corrupt_data` for wrong contents.
  static result<std::shared_ptr<const context>> open(const context_options& options);

  virtual const context_options& options() const noexcept = 0;
  /// True with certificates, false with the secret.
  bool by_certificate() const noexcept { return !options().certificate.empty(); }

  /// Nil with certificates, because members then need not have the same files.
  virtual const cluster_mark& mark() const noexcept = 0;

  /// The context of OpenSSL, for `stream`.
  virtual ssl_ctx_st* native() const noexcept = 0;
};

} // namespace millrace::net::tls
