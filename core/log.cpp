// The one logger of the process. Called by every room.
#include <millrace/core/log.hpp>

#include <spdlog/sinks/stdout_color_sinks.h>

namespace millrace {

spdlog::logger& log() {
  static spdlog::logger instance = [] {
    spdlog::logger made{"millrace", std::make_shared<spdlog::sinks::stderr_color_sink_mt>()};
    made.set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
    made.set_level(spdlog::level::warn);
    return made;
  }();
  return instance;
}

bool configure_log(const std::string& level) {
  // spdlog treats an unknown name as "off".
  auto parsed = spdlog::level::from_str(level);
  if (parsed == spdlog::level::off && level != "off")
    return false;
  log().set_level(parsed);
  return true;
}

} // namespace millrace
