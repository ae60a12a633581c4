// The configuration of this build: the sections of all rooms, drivers and buckets, and the calls
// that read a file by them. Called by programs that embed a node, and by the command.
#pragma once

#include <millrace/config/schema.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

/// Returns all sections and keys that this build knows.
const config::schema& configuration_schema();

/// Reads the settings of the file at `path`. If the file describes several nodes,
/// `settings::for_node` picks one.
/// Errors:  what the operating system says, with the path; those of `parse_configuration`.
result<config::settings> load_configuration(const std::string& path);

/// Reads the settings of a YAML text. An empty text gives the defaults: one node with one provider.
/// Errors:  `invalid_argument`, as "file:line:column: what; did you mean 'nearest'?", for the first
///          thing that is unknown, given twice, of the wrong type, out of range, or inconsistent
///          with the rest.
result<config::settings> parse_configuration(std::string_view text, const std::string& file_name);

/// Returns what peers may make a node keep in memory besides its providers and staging, at most:
/// requests, frames, and what drivers lend.
std::uint64_t bytes_for_peers(const config::settings& node);

/// Returns what to do when a control group allows less memory than a node takes. The text names the
/// providers whose models are in memory.
std::string take_less_memory(const config::settings& node);
/// Returns what to do when it allows less than the node and `bytes_for_peers` together.
std::string give_peers_less_memory();

/// Returns what providers may be set to, but hardly should be, as sentences that name the keys.
std::vector<std::string> warnings_about(const std::vector<config::provider_settings>& providers);

} // namespace millrace
