// Converts single values to text and back. Used by the reader, and by the checks of options that do
// not come from a file.
#pragma once

#include <millrace/config/keys.hpp>
#include <millrace/core/status.hpp>

#include <string>

namespace millrace::config {

/// Reads the text of one value, or of one item of a list.
/// Errors: `invalid_argument` that repeats the text and says what is wrong with it.
result<value> read_scalar(const key_spec& key, const std::string& text);

/// Returns a value as the file would have it: "64KiB", "500ms", "[a, b]", "auto".
std::string text_of(const key_spec& key, const value& v);

/// Checks a number against the bounds of its key.
/// Errors:  `invalid_argument`, repeating `text`: "'0' is below the least allowed, 1".
[[nodiscard]] status check_range(const key_spec& key, std::uint64_t number, std::string_view text);

/// Returns "a, b".
std::string listed(std::span<const std::string_view> words);

} // namespace millrace::config
