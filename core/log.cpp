// The process's log: spdlog's default logger on standard error.
#include <millrace/core/log.hpp>

#include <spdlog/sinks/stdout_color_sinks.h>

namespace millrace {

bool configure_log(const std::string& level) {
  auto parsed = spdlog::level::from_str(level);
  if (parsed == spdlog::level::off && level != "off")
    return false;
  static const auto logger = spdlog::stderr_color_mt("millrace");
  spdlog::set_default_logger(logger);
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
  spdlog::set_level(parsed);
  return true;
}

} // namespace millrace
