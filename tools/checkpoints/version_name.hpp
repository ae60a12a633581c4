// The names of versions, and of the files of several ranks, on the command line.
// Used by `millrace checkpoints`.
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

/// Parses "resnet" or "resnet@12". The text after the last '@' is a step if it is a number.
version_name parse_version_name(const std::string& text);

/// Returns the error for a model that is not there. Says so when the name ends in what might be
/// meant as a step.
status explain_name(const status& why, const std::string& text);

/// Returns the file of one rank: every "{rank}" in the name becomes the rank's number.
std::string file_of_rank(const std::string& pattern, std::uint32_t rank);

/// Returns ranks and their files: the named rank, the only rank, or all ranks when the name
/// contains "{rank}".
/// Errors:  `invalid_argument` when several ranks would share a file.
result<std::vector<std::pair<std::uint32_t, std::string>>> files_of_ranks(
  const std::string& pattern, std::optional<std::uint32_t> rank, std::uint32_t world_size);

} // namespace millrace::tools
