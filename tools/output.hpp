// JSON for the objects that several commands print.
// Used by the commands' files.
#pragma once

#include <millrace/config/settings.hpp>
#include <millrace/core/status.hpp>
#include <millrace/tools/command.hpp>

#include <nlohmann/json.hpp>

#include <string>

namespace millrace::tools {

using json = nlohmann::ordered_json;

/// {"code": "not_found", "detail": "..."}
json to_json(const status& why);

/// Prints a document to the output stream. Invalid UTF-8 is replaced.
void print_json(invocation& call, const json& document);

/// Returns "a (memory, 1GiB)", with the path for kinds that have one.
std::string describe(const config::provider_settings& provider);
json to_json(const config::provider_settings& provider);

/// Returns "data server (16GiB)". Empty: these options of a node give it none.
std::string describe_data(const config::option_set& options);
/// {"capacity_bytes": 17179869184}; null without a data server.
json data_to_json(const config::option_set& options);

} // namespace millrace::tools
