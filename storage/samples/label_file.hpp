// Labels of files, from a CSV file. Used by the reader of filesets.
#pragma once

#include <millrace/core/status.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace millrace::storage::samples {

/// The largest file of labels that is read.
inline constexpr std::uint64_t label_file_bytes_max = 1u << 30;

/// Returns the whole number that a text is, with nothing around it; none if it is not one.
std::optional<std::int64_t> parse_label(std::string_view text) noexcept;

using label_map = std::unordered_map<std::string, std::int64_t>;

/// Reads lines "path,label" with whole numbers as labels. A path with commas stands in quotes, in
/// which a quote is written twice. A first line "path,label", empty lines and a byte order mark are
/// skipped.
/// Errors:  `corrupt_data` naming the line that is none, or whose path has been there before.
/// Threads: pure.
result<label_map> parse_labels(std::string_view text);

} // namespace millrace::storage::samples
