// Draws axes, lines and their names.
#include <millrace/tools/predict/line_chart.hpp>
#include <millrace/tools/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

namespace millrace::tools {

namespace {

constexpr double width = 760, height = 440;
constexpr double left = 80, right = 650, top = 50, bottom = 380;

constexpr auto style = R"(<style>
  text { font: 12px system-ui, sans-serif; fill: #1f2328; }
  .title { font-weight: 600; }
  .paper { fill: #ffffff; }
  .grid { stroke: #d1d9e0; stroke-width: 1; }
  .line { fill: none; stroke-width: 2; }
  .line0 { stroke: #2f6fbf; } .line1 { stroke: #b3541e; } .line2 { stroke: #2f8f4a; }
  .line3 { stroke: #8250a8; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .paper { fill: #0d1117; }
    .grid { stroke: #3d444d; }
  }
</style>
)";

// One axis: from the logarithm of the least value to that of the largest one.
class axis {
public:
  axis(double least, double most, double from, double to)
    : least_(std::log(least)), most_(std::log(most)), from_(from), to_(to) {}

  double at(double value) const {
    auto part = most_ > least_ ? (std::log(value) - least_) / (most_ - least_) : 0.5;
    return from_ + part * (to_ - from_);
  }

private:
  double least_, most_, from_, to_;
};

struct extent {
  double least = std::numeric_limits<double>::max(), most = 0;
  void add(double value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
};

double power_of_ten(double exponent) { return std::pow(10.0, exponent); }

std::string draw_times(const axis& y, const extent& times) {
  std::string out;
  for (auto time = times.least; time <= times.most * 1.01; time *= 10)
    out += fmt::format(
      "<line class=\"grid\" x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\"/>\n"
      "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
      left, y.at(time), right, y.at(time), left - 8, y.at(time) + 4, human_seconds(time));
  return out;
}

// Labels that would touch the one before are left out.
std::string draw_counts(const axis& x, const std::set<double>& counts, const std::string& below) {
  std::string out;
  auto free_from = 0.0;
  for (auto count : counts) {
    auto at = x.at(count);
    out += fmt::format(
      "<line class=\"grid\" x1=\"{:.1f}\" y1=\"{}\" x2=\"{:.1f}\" y2=\"{}\"/>\n", at, top, at,
      bottom);
    if (at < free_from)
      continue;
    free_from = at + 44;
    out += fmt::format(
      "<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:.0f}</text>\n", at, bottom + 18, count);
  }
  return out +
    fmt::format(
           "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", (left + right) / 2,
           bottom + 40, below);
}

std::string draw_line(const axis& x, const axis& y, const chart_line& line, std::size_t number) {
  std::string points;
  for (auto& [at, time] : line.points)
    points += fmt::format("{}{:.1f},{:.1f}", points.empty() ? "" : " ", x.at(at), y.at(time));
  return fmt::format("<polyline class=\"line line{}\" points=\"{}\"/>\n", number, points);
}

// A name stands at the end of its line, or below another name that is there.
std::string draw_names(const axis& y, const std::vector<chart_line>& lines) {
  constexpr double apart = 15;
  std::multimap<double, std::string> names;
  for (auto& line : lines)
    names.emplace(y.at(line.points.back().second), line.name);
  std::string out;
  auto free_from = 0.0;
  for (auto& [end, name] : names) {
    auto at = std::max(end, free_from);
    free_from = at + apart;
    out += fmt::format("<text x=\"{}\" y=\"{:.1f}\">{}</text>\n", right + 8, at + 4, name);
  }
  return out;
}

} // namespace

std::string to_svg(const line_chart& chart) {
  extent counts, times;
  std::set<double> ticks;
  for (auto& line : chart.lines)
    for (auto& [at, time] : line.points) {
      counts.add(at);
      times.add(time);
      ticks.insert(at);
    }
  times = {
    power_of_ten(std::floor(std::log10(times.least))),
    power_of_ten(std::ceil(std::log10(times.most)))};
  axis x{counts.least, counts.most, left, right}, y{times.least, times.most, bottom, top};
  auto out = fmt::format(
    "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
    "viewBox=\"0 0 {0} {1}\" role=\"img\">\n<title>{2}</title>\n{3}"
    "<rect class=\"paper\" width=\"{0}\" height=\"{1}\"/>\n"
    "<text class=\"title\" x=\"10\" y=\"22\">{2}</text>\n",
    width, height, chart.title, style);
  out += draw_times(y, times) + draw_counts(x, ticks, chart.below);
  for (std::size_t i = 0; i < chart.lines.size(); ++i)
    out += draw_line(x, y, chart.lines[i], i);
  return out + draw_names(y, chart.lines) + "</svg>\n";
}

} // namespace millrace::tools
