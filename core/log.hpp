// Log lines to standard error through spdlog: one line an event, `key=value` after the sentence.
#pragma once

#include <spdlog/spdlog.h>

namespace millrace {

/// Sets the level by name (trace, debug, info, warn, error, off) and the pattern, once at start.
/// Returns false for an unknown name, and leaves the level as it is.
bool configure_log(const std::string& level);

} // namespace millrace
