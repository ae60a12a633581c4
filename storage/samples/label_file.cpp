// Takes a path and a number from each line.
#include <millrace/storage/samples/label_file.hpp>

#include <algorithm>
#include <charconv>
#include <utility>

namespace millrace::storage::samples {

namespace {

// Takes a path, which may be in quotes, and the comma behind it.
std::optional<std::string> take_path(std::string_view& line) {
  if (!line.starts_with('"')) {
    auto comma = line.find(',');
    if (comma == std::string_view::npos)
      return std::nullopt;
    std::string path{line.substr(0, comma)};
    line.remove_prefix(comma + 1);
    return path;
  }
  std::string path;
  line.remove_prefix(1);
  for (auto quote = line.find('"'); quote != std::string_view::npos; quote = line.find('"')) {
    path += line.substr(0, quote);
    line.remove_prefix(quote + 1);
    if (!line.starts_with('"')) {
      auto ends = line.starts_with(',');
      line.remove_prefix(ends ? 1 : 0);
      return ends ? std::optional{path} : std::nullopt;
    }
    path += '"';
    line.remove_prefix(1);
  }
  return std::nullopt;
}

status add_line(std::string_view line, std::uint64_t number, label_map& labels) {
  auto path = take_path(line);
  auto label = path ? parse_label(line) : std::nullopt;
  if (!path || path->empty() || !label)
    return {errc::corrupt_data, "line {} is not \"path,label\" with a whole number", number};
  if (!labels.emplace(std::move(*path), *label).second)
    return {errc::corrupt_data, "line {}: its path has a label already", number};
  return {};
}

} // namespace

std::optional<std::int64_t> parse_label(std::string_view text) noexcept {
  std::int64_t value = 0;
  auto* end = text.data() + text.size();
  auto [last, bad] = std::from_chars(text.data(), end, value);
  return bad == std::errc{} && last == end ? std::optional{value} : std::nullopt;
}

result<label_map> parse_labels(std::string_view text) {
  label_map labels;
  if (text.starts_with("\xef\xbb\xbf"))
    text.remove_prefix(3);
  for (std::uint64_t number = 1; !text.empty(); ++number) {
    auto end = std::min(text.find('\n'), text.size());
    auto line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r'))
      line.remove_suffix(1);
    if (line.empty() || (number == 1 && line == "path,label"))
      continue;
    if (auto bad = add_line(line, number, labels); !bad.ok())
      return fail(bad);
  }
  return labels;
}

} // namespace millrace::storage::samples
