// The one logger of the process, through spdlog. Called by every room.
#include <millrace/core/assert.hpp>
#include <millrace/core/log.hpp>

#include <pthread.h>
#include <spdlog/sinks/dist_sink.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace millrace {

namespace {

struct lockable_sink final : spdlog::sinks::dist_sink_mt {
  std::mutex& lock() noexcept { return mutex_; }
};

// The logger writes to one sink, whose target changes under its lock.
struct backend {
  std::shared_ptr<lockable_sink> target = std::make_shared<lockable_sink>();
  spdlog::logger lines{"millrace", target};
  std::mutex redirecting;
  std::ostream* redirected = nullptr;

  backend() {
    lines.set_level(spdlog::level::warn);
    write_to(nullptr);
  }

  void write_to(std::ostream* to) {
    spdlog::sink_ptr sink;
    if (to)
      sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(*to);
    else
      sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
    sink->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
    target->set_sinks({std::move(sink)});
  }
};

backend& the_backend() {
  // Never destroyed, since a fork may come late.
  static auto& instance = *new backend;
  // No line is being written during a fork, so that the child finds all locks of the log free.
  static const bool kept_whole =
    ::pthread_atfork(
      [] { instance.target->lock().lock(); }, [] { instance.target->lock().unlock(); },
      [] { instance.target->lock().unlock(); }) == 0;
  MILLRACE_ASSERT(kept_whole);
  return instance;
}

spdlog::level::level_enum severity_of(log_level level) {
  switch (level) {
  case log_level::trace:
    return spdlog::level::trace;
  case log_level::debug:
    return spdlog::level::debug;
  case log_level::info:
    return spdlog::level::info;
  case log_level::warn:
    return spdlog::level::warn;
  case log_level::error:
    return spdlog::level::err;
  case log_level::off:
    break;
  }
  return spdlog::level::off;
}

} // namespace

void logger::write(log_level level, fmt::string_view text, fmt::format_args values) {
  auto& lines = the_backend().lines;
  auto severity = severity_of(level);
  if (!lines.should_log(severity))
    return;
  try {
    lines.log(severity, spdlog::string_view_t{fmt::vformat(text, values)});
  } catch (const std::exception&) {
    // Without memory for its line, the work goes on; spdlog treats its own failures in this way.
  }
}

bool configure_log(const std::string& level) {
  // spdlog treats an unknown name as "off".
  auto parsed = spdlog::level::from_str(level);
  if (parsed == spdlog::level::off && level != "off")
    return false;
  the_backend().lines.set_level(parsed);
  return true;
}

std::ostream* redirect_log(std::ostream* to) {
  auto& all = the_backend();
  std::scoped_lock lock{all.redirecting};
  all.write_to(to);
  return std::exchange(all.redirected, to);
}

} // namespace millrace
