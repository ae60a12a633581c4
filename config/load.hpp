// From a file or a text to checked settings, by a schema. Called by the runtime, which knows the schema of this build.
#pragma once

#include <millrace/config/schema.hpp>

#include <string>
#include <string_view>

namespace millrace::config {

/// Settings of the file at `path`; several nodes may be in it, `settings::for_node` picks one.
///
/// Errors: what the operating system says, with the path; `invalid_argument` as `parse`.
result<settings> load_file(const std::string& path, const schema& all);

/// Settings of a YAML text. An empty one gives the defaults: one node with one memory provider.
///
/// Errors: `invalid_argument`, as "file:line:column: what; did you mean 'nearest'?", for the first
///         thing that is unknown, given twice, of the wrong type, out of range, or does not fit the
///         rest. Safe on hostile text: bounded size, depth and number of values.
result<settings> parse(std::string_view text, const std::string& file_name, const schema& all);

} // namespace millrace::config
