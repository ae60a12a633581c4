// Names of files with braces and patterns, as shells expand them. Used when samples are opened.
#pragma once

#include <millrace/core/status.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace millrace::storage::samples {

/// The most names that one call gives, and the most characters of a name with braces.
inline constexpr std::size_t expanded_names_max = 1u << 20;
inline constexpr std::size_t braces_length_max = 4096;

/// Expands `{a,b}`, and ranges of numbers as `{0..12}` and `{0000..0012}`, which may also fall. The
/// numbers have as many digits as the longer end if one end begins with 0. Braces may be nested;
/// those with neither are text.
/// Errors:  `invalid_argument` for more names or a longer text than the bounds above.
/// Threads: pure.
result<std::vector<std::string>> expand_braces(std::string_view text);

/// Expands braces, and then the patterns `*`, `?` and `[...]` by files that there are, which come
/// in the order of their names' bytes. The name of a file that is there is taken as it is.
/// Errors:  as of `expand_braces`; `not_found` naming a pattern that no file matches; those of the
///          system, naming a directory that cannot be listed.
/// Threads: blocks the caller.
result<std::vector<std::string>> expand_names(const std::vector<std::string>& names);

/// Returns whether a name stands for a file, or for any of several, that is there.
/// Threads: blocks the caller.
bool names_any(const std::string& name);

} // namespace millrace::storage::samples
