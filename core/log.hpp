// Log lines to standard error through spdlog: one line an event, `key=value` after the sentence.
#pragma once

#include <spdlog/spdlog.h>

namespace millrace {

/// Millrace's own logger, so that a program that embeds us keeps its own. Writes to standard error, from level
/// `warn` on until `configure_log` says otherwise. Any thread.
spdlog::logger& log();

/// Sets the level by name: trace, debug, info, warn, error, off.
/// Returns false for an unknown name, and leaves the level as it is.
bool configure_log(const std::string& level);

} // namespace millrace
