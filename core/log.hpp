// The log: one line per event to standard error through spdlog, `key=value` after the sentence.
// Used by every room.
#pragma once

#include <spdlog/spdlog.h>

namespace millrace {

/// Returns Millrace's own logger; a program that embeds the library keeps its own. The logger
/// writes to standard error, from level `warn` up unless `configure_log` sets another. Any thread.
spdlog::logger& log();

/// Sets the level by name: trace, debug, info, warn, error, off.
/// Returns false for an unknown name, and leaves the level as it is.
bool configure_log(const std::string& level);

} // namespace millrace
