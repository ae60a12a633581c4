// Reading small files that must be kept from others: secrets and private keys.
// Used by `cluster_secret` and `context`.
#pragma once

#include <millrace/core/status.hpp>

#include <string>
#include <string_view>

namespace millrace::net::tls {

/// The whole file. `what` names its kind in errors: "the cluster's secret".
/// Errors: `not_found`; `permission_denied` when the group or others may read or write it, or it belongs to
/// another user (root's is fine); `corrupt_data` for what is no regular file of up to `bytes_max`.
result<std::string> read_private_file(
  const std::string& path, std::string_view what, std::size_t bytes_max);

} // namespace millrace::net::tls
