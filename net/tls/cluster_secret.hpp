// The secret of a cluster: 32 random bytes in a file that only its owner may read.
// Made by `millrace cluster secret`; read by `context`.
#pragma once

#include <millrace/core/status.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::net::tls {

using cluster_secret = std::array<std::uint8_t, 32>;

/// Makes a new secret in a new file of mode 0600.
/// Errors: `already_exists` (a secret is never overwritten); others from the system.
status create_cluster_secret(const std::string& path);

/// Errors, all with the remedy: `not_found`; `permission_denied` when the group or others may read
/// or write the file, or when it belongs to another user than root; `corrupt_data` for a file that
/// holds no complete secret.
result<cluster_secret> load_cluster_secret(const std::string& path);

/// One line of text: a mark, the secret and a checksum, in hexadecimal.
std::string encode_cluster_secret(const cluster_secret& secret);
/// Errors: `corrupt_data` with the reason; it never quotes the text.
result<cluster_secret> decode_cluster_secret(std::string_view text);

} // namespace millrace::net::tls
