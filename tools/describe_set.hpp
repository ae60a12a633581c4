// Prints the description of a working set, as text or as JSON.
// Used by the commands of `millrace data`.
#pragma once

#include <millrace/core/working_set.hpp>
#include <millrace/runtime/client/working_set.hpp>
#include <millrace/tools/output.hpp>

#include <iosfwd>
#include <string>

namespace millrace::tools {

/// Returns the bytes of all samples, without their tables.
std::uint64_t samples_bytes(const set_info& set);

/// Returns a checksum as text: 16 hexadecimal digits. JSON has them as text too, since many of its
/// readers keep 53 bits of a number.
std::string checksum_text(std::uint64_t checksum);

/// Returns the shape of a sample as text. The extent that varies is "*".
std::string shape_text(const sample_field& field);

/// All facts but the node.
/// Returns the nodes that keep a set: those of its parts, or its home.
std::string places_of(const set_info& set, const std::string& node);
json to_json(const set_info& set);
void print(std::ostream& out, const set_info& set, const std::string& node);
/// What a window has done.
json to_json(const window_counts& counts);
void print(std::ostream& out, const window_counts& counts);
/// How this process would read a set, in two fields of a description.
void add_json(json& into, const set_access& access);
void print(std::ostream& out, const set_access& access);

} // namespace millrace::tools
