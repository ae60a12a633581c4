// Draws the progress line of all commands.
#include <millrace/tools/progress_line.hpp>
#include <millrace/tools/text.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iostream>

namespace millrace::tools {

namespace {

constexpr auto redraw = std::chrono::milliseconds{100};
constexpr std::size_t bar_width = 24;

// The mark moves one step to the right with every redraw.
std::string moving_mark(std::chrono::milliseconds spent) {
  std::string bar(bar_width, ' ');
  bar[static_cast<std::size_t>(std::max<std::int64_t>(spent / redraw, 0)) % bar_width] = '#';
  return bar;
}

// Rounded up to seconds, so that the text does not flicker.
std::uint64_t left_ms(std::uint64_t bytes, double bytes_per_s) {
  constexpr double longest_s = 1e9;
  auto seconds = std::min(std::ceil(static_cast<double>(bytes) / bytes_per_s), longest_s);
  return static_cast<std::uint64_t>(seconds) * 1000;
}

} // namespace

// Only the process's own standard error can be a terminal. Tests pass other streams.
progress_line::progress_line(const invocation& call, std::string what)
  : on_(!call.json && &call.err == &std::cerr && ::isatty(STDERR_FILENO) == 1),
    what_(printable(what)) {}

progress_line::~progress_line() {
  if (visible_)
    std::cerr << "\r\x1b[K" << std::flush;
}

void progress_line::show(std::uint64_t done, std::uint64_t total) {
  auto now = clock::now();
  if (!on_ || now - drawn_ < redraw)
    return;
  drawn_ = now;
  visible_ = true;
  auto spent = std::chrono::duration_cast<std::chrono::milliseconds>(now - begun_);
  std::cerr << '\r' << progress_text(what_, done, total, spent) << "\x1b[K" << std::flush;
}

progress_callback progress_line::callback() {
  return [this](std::uint64_t done, std::uint64_t total) {
    show(done, total);
    return true;
  };
}

std::string progress_text(
  const std::string& what, std::uint64_t done, std::uint64_t total,
  std::chrono::milliseconds spent) {
  if (total == 0)
    return fmt::format("{} [{}] {} s", what, moving_mark(spent), spent.count() / 1000);
  auto share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
  auto filled = static_cast<std::size_t>(share * bar_width);
  auto rate = spent.count() <= 0
    ? 0.0
    : static_cast<double>(done) * 1000 / static_cast<double>(spent.count());
  auto left = rate > 0 && done < total
    ? ", " + human_duration(left_ms(total - done, rate)) + " left"
    : std::string{};
  return fmt::format(
    "{} [{:<{}}] {:3.0f}%  {} of {}  {}/s{}", what, std::string(filled, '#'), bar_width,
    share * 100, human_size(done), human_size(total), human_size(static_cast<std::uint64_t>(rate)),
    left);
}

} // namespace millrace::tools
