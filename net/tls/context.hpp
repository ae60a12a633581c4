// What proves the members of a cluster to each other: its secret, or certificates. One per node or client.
// Made from the configuration; given to channels and listeners by `channel_options::tls`.
#pragma once

#include <millrace/core/status.hpp>
#include <millrace/net/channel/channel.hpp>

#include <memory>
#include <string>

struct ssl_ctx_st;

namespace millrace::net::tls {

struct context_options {
  /// The file of the cluster's secret. Both sides show in TLS 1.3 that they know it.
  std::string secret;
  /// PEM files, all three or none; the secret is not used then. Both sides check the other's certificate against
  /// the authority, and that the node's name is in it (a DNS name, or the common name).
  std::string certificate;
  std::string key;
  std::string authority;
};

/// Threads: any; it never changes.
class context {
public:
  virtual ~context() = default;

  /// Reads the files. There is no mode without either.
  /// Errors: `invalid_argument` when neither or half of one is named; `not_found`; `permission_denied` for a
  /// secret or key that others can read; `corrupt_data` for what a file does not hold. All name the file.
  static result<std::shared_ptr<const context>> open(const context_options& options);

  virtual const context_options& options() const noexcept = 0;
  /// True with certificates, false with the secret.
  bool by_certificate() const noexcept { return !options().certificate.empty(); }

  /// Nil with certificates: their members need not have the same files.
  virtual const cluster_mark& mark() const noexcept = 0;

  /// OpenSSL's view of it, for `stream`.
  virtual ssl_ctx_st* native() const noexcept = 0;
};

} // namespace millrace::net::tls
