// Puts misfits into words, and checks options that do not come from a file.
#include <millrace/config/scalar.hpp>
#include <millrace/config/section.hpp>

#include <fmt/core.h>

#include <algorithm>

namespace millrace::config {

std::optional<std::size_t> section::number_of(std::string_view key) const {
  auto found = std::find_if(keys.begin(), keys.end(), [&](auto& k) { return k.name == key; });
  return found == keys.end() ? std::nullopt
                             : std::optional{static_cast<std::size_t>(found - keys.begin())};
}

std::string text_of(
  const section& s, const void* options, std::string_view key, std::string_view path) {
  auto number = s.number_of(key);
  MILLRACE_ASSERT(number.has_value());
  return fmt::format("{}.{} ({})", path, key, text_of(s.keys[*number], s.get(options, *number)));
}

std::string text_of(
  const section& s, const void* options, const misfit& fault, std::string_view path) {
  auto text = fmt::format("{} {}", text_of(s, options, fault.key, path), fault.what);
  return fault.other.empty() ? text : text + " " + text_of(s, options, fault.other, path);
}

status check_options(const section& s, const void* options) {
  for (std::size_t i = 0; i < s.keys.size(); ++i) {
    auto& key = s.keys[i];
    auto v = s.get(options, i);
    auto bad =
      key.max == 0 || v.text == "auto" ? status{} : check_range(key, v.number, text_of(key, v));
    for (auto& item : v.list)
      if (auto read = read_scalar(key, item); bad.ok() && !read)
        bad = read.error();
    if (!bad.ok())
      return bad.within(std::string{s.name} + "." + std::string{key.name});
  }
  auto fault = s.check(options);
  return fault ? status{errc::invalid_argument, text_of(s, options, *fault, s.name)} : status{};
}

} // namespace millrace::config
