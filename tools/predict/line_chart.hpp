// A chart of lines as SVG, with logarithmic axes.
// Used by `millrace predict`.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace millrace::tools {

struct chart_line {
  std::string name;
  std::vector<std::pair<double, double>> points; // both above 0
};

struct line_chart {
  std::string title;
  std::string below;             // what the horizontal axis counts; the vertical one is time
  std::vector<chart_line> lines; // at most four, and one point at least
};

/// Returns the chart as a document of its own, which also fits a dark page. The texts are ours, so
/// nothing is escaped.
std::string to_svg(const line_chart& chart);

} // namespace millrace::tools
