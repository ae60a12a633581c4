// The rule that chooses one of a port's addresses. Pure functions.
// Used by `device`.
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
  std::string rule; // the rule that chose it, as text
};

/// Chooses an address in this order: RoCE v2 with an IPv4 address, with a global IPv6 address, with
/// a link-local one; then InfiniBand's own; then RoCE v1, which no router forwards. Takes the
/// lowest index of the best kind. `wanted` overrules the rule.
/// Errors:  `not_found` when there is none, or none at the wanted index.
result<gid_choice> choose_gid(
  std::span<const gid_entry> entries, std::optional<std::uint32_t> wanted);

/// Returns "::ffff:10.77.0.1".
std::string to_string(const gid_bytes& gid);

} // namespace millrace::transport::verbs
