// Reads small files that other users must not read: secrets and private keys.
// Used by `cluster_secret` and `context`.
#pragma once

#include <millrace/core/status.hpp>

#include <string>
#include <string_view>

namespace millrace::net::tls {

/// Returns the contents. `what` names the kind of file in errors: "the cluster's secret".
/// Errors: `not_found`; `permission_denied` when the group or others may read or write it, or when
/// it belongs to another user than root; `corrupt_data` when it is not a regular file of at most
/// `bytes_max`.
result<std::string> read_private_file(
  const std::string& path, std::string_view what, std::size_t bytes_max);

} // namespace millrace::net::tls
