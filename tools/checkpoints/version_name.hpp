// How versions and files of several ranks are named on the command line. Used by `millrace checkpoints`.
#pragma once

#include <millrace/core/status.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace millrace::tools {

struct version_name {
  std::string model;
  std::optional<std::uint64_t> step;
};

/// "resnet" or "resnet@12"; what follows the last '@' counts as a step if it is a number.
version_name parse_version_name(const std::string& text);

/// The file of one rank: every "{rank}" in the name is its number.
std::string file_of_rank(const std::string& pattern, std::uint32_t rank);

/// Ranks and their files: the rank that was named, the only one, or all of them when the name has "{rank}".
/// Errors: `invalid_argument` when several ranks would share a file.
result<std::vector<std::pair<std::uint32_t, std::string>>> files_of_ranks(
  const std::string& pattern, std::optional<std::uint32_t> rank, std::uint32_t world_size);

} // namespace millrace::tools
