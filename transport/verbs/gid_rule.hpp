// Which of a port's addresses to use. Pure; asked by `device`.
#pragma once

#include <millrace/core/status.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace millrace::transport::verbs {

using gid_bytes = std::array<std::uint8_t, 16>;

enum class gid_type { infiniband, roce_v1, roce_v2 };

struct gid_entry {
  std::uint32_t index = 0;
  gid_bytes gid{};
  gid_type type = gid_type::infiniband;
};

struct gid_choice {
  gid_entry entry;
  std::string rule; // in words
};

/// The rule: RoCE v2 with an IPv4 address, then with a global IPv6 address, then link-local; then InfiniBand's own,
/// then RoCE v1, which crosses no router. The lowest index of the best kind. `wanted` overrules it.
/// Errors: `not_found` when there is none, or none at the index wanted.
result<gid_choice> choose_gid(
  std::span<const gid_entry> entries, std::optional<std::uint32_t> wanted);

/// "::ffff:10.77.0.1"
std::string to_string(const gid_bytes& gid);

} // namespace millrace::transport::verbs
