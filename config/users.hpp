// Users of this system by the names that a configuration gives. Used by nodes, clients and
// `millrace config check`.
#pragma once

#include <millrace/core/status.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::config {

/// Returns the numbers of users that are given by name or by number.
/// Errors:  `invalid_argument` naming the key and the user that this system does not have.
result<std::vector<std::uint32_t>> uids_of(
  std::string_view key, const std::vector<std::string>& users);

} // namespace millrace::config
