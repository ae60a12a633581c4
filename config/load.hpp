// Turns a file or a text into checked settings, by a schema. Called by the runtime, which knows the
// schema of this build.
#pragma once

#include <millrace/config/schema.hpp>

#include <string>
#include <string_view>

namespace millrace::config {

/// Returns the text of a configuration file, at most one byte more than a document may have.
/// Errors:  what the operating system says, with the path.
result<std::string> read_file(const std::string& path);

/// Reads the settings of the file at `path`. If it describes several nodes, `settings::for_node`
/// picks one.
/// Errors:  what the operating system says, with the path; those of `parse`.
result<settings> load_file(const std::string& path, const schema& all);

/// Reads the settings of a YAML text. An empty text gives the defaults: one node with one memory
/// provider. Safe for untrusted text: size, depth and number of values are bounded.
/// Errors:  `invalid_argument`, as "file:line:column: what; did you mean 'nearest'?", for the first
///          thing that is unknown, given twice, of the wrong type, out of range, or inconsistent
///          with the rest.
result<settings> parse(std::string_view text, const std::string& file_name, const schema& all);

} // namespace millrace::config
