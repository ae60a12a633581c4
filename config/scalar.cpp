// Converts single values to text and back.
#include <millrace/config/address.hpp>
#include <millrace/config/document.hpp>
#include <millrace/config/nearest.hpp>
#include <millrace/config/scalar.hpp>
#include <millrace/config/schema.hpp>
#include <millrace/config/units.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <charconv>

namespace millrace::config {

std::string listed(std::span<const std::string_view> words) {
  std::string text;
  for (auto word : words)
    text += (text.empty() ? "" : ", ") + std::string{word};
  return text;
}

namespace {

std::string list_text(const std::vector<std::string>& items) {
  std::string text;
  for (auto& item : items)
    text += (text.empty() ? "" : ", ") + item;
  return "[" + text + "]";
}

std::string octal(std::uint64_t mode) {
  std::string text;
  for (int shift = 9; shift >= 0; shift -= 3)
    text += static_cast<char>('0' + (mode >> shift & 7));
  return text;
}

tl::unexpected<status> refuse(std::string what) {
  return fail(errc::invalid_argument, std::move(what));
}

result<value> read_name(const std::string& text) {
  auto allowed = [](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
      c == '_' || c == '-';
  };
  if (
    text.empty() || text.size() > name_bytes_max || !std::all_of(text.begin(), text.end(), allowed))
    return refuse(
      fmt::format("'{}' is not a name: 1 to {} of A-Z a-z 0-9 . _ -", shown(text), name_bytes_max));
  return value{text, 0, {}};
}

result<value> read_path(const std::string& text) {
  constexpr std::size_t path_bytes_max = 4095;
  auto control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (
    text.empty() || text.size() > path_bytes_max || std::any_of(text.begin(), text.end(), control))
    return refuse("'" + shown(text) + "' is not a path");
  return value{text, 0, {}};
}

result<value> read_checked(const std::string& text, status (*check)(std::string_view)) {
  if (auto bad = check(text); !bad.ok())
    return fail(std::move(bad));
  return value{text, 0, {}};
}

result<value> read_mode(const std::string& text) {
  value v{text, 0, {}};
  auto end = text.data() + text.size();
  auto [rest, bad] = std::from_chars(text.data(), end, v.number, 8);
  if (bad != std::errc{} || rest != end || v.number > 0777)
    return refuse("'" + shown(text) + "' is not a mode such as 0600 or 0666");
  return v;
}

result<value> read_boolean(const std::string& text) {
  if (text == "true" || text == "false")
    return value{text, text == "true" ? 1u : 0u, {}};
  std::string folded;
  for (unsigned char c : text.substr(0, 8))
    folded += static_cast<char>(c >= 'A' && c <= 'Z' ? c | 0x20 : c);
  std::string meant;
  if (folded == "true" || folded == "yes" || folded == "on" || folded == "1")
    meant = "; did you mean 'true'?";
  else if (folded == "false" || folded == "no" || folded == "off" || folded == "0")
    meant = "; did you mean 'false'?";
  return refuse("'" + shown(text) + "' is neither true nor false" + meant);
}

result<value> read_choice(const key_spec& key, const std::string& text) {
  auto found = std::find(key.choices.begin(), key.choices.end(), text);
  if (found == key.choices.end())
    return refuse(
      "'" + shown(text) + "' is not one of " + listed(key.choices) +
      did_you_mean(text, key.choices));
  return value{text, static_cast<std::uint64_t>(found - key.choices.begin()), {}};
}

status check_device(std::string_view text) {
  auto port = text.find(':');
  auto name = text.substr(0, port);
  auto allowed = [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == '.';
  };
  bool port_is_number = port == text.npos ||
    (port + 1 < text.size() && text.size() - port <= 4 &&
     text.find_first_not_of("0123456789", port + 1) == text.npos);
  if (
    name.empty() || name.size() > name_bytes_max ||
    !std::all_of(name.begin(), name.end(), allowed) || !port_is_number)
    return {errc::invalid_argument, "'{}' is not a device such as mlx5_0 or mlx5_0:1", shown(text)};
  return {};
}

result<value> read_user(const std::string& text) {
  auto odd = [](unsigned char c) { return c <= 0x20 || c == ':' || c == '/' || c == 0x7f; };
  if (text.empty() || text.size() > 255 || std::any_of(text.begin(), text.end(), odd))
    return refuse("'" + shown(text) + "' is not the name or number of a user");
  return value{text, 0, {}};
}

result<value> read_number(const key_spec& key, const std::string& raw) {
  auto text = shown(raw);
  bool counts = key.type == key_type::count || key.type == key_type::count_or_auto;
  auto number = counts           ? parse_count(text)
    : key.type == key_type::size ? parse_size(text)
                                 : parse_duration_us(text);
  if (!number)
    return fail(std::move(number.error()));
  if (key.type == key_type::duration_ms) {
    if (*number % 1000 != 0)
      return refuse("'" + text + "' is not a whole number of milliseconds");
    *number /= 1000;
  }
  if (auto bad = check_range(key, *number, text); !bad.ok())
    return fail(std::move(bad));
  return value{{}, *number, {}};
}

} // namespace

result<value> read_scalar(const key_spec& key, const std::string& text) {
  switch (key.type) {
  case key_type::name:
    return read_name(text);
  case key_type::path:
    return read_path(text);
  case key_type::addresses:
    return read_checked(text, check_address);
  case key_type::host:
    return read_checked(text, check_host);
  case key_type::mode:
    return read_mode(text);
  case key_type::boolean:
    return read_boolean(text);
  case key_type::choice:
  case key_type::choices:
    return read_choice(key, text);
  case key_type::users:
    return read_user(text);
  case key_type::endpoints:
    return read_checked(text, check_endpoint);
  case key_type::devices:
    return read_checked(text, check_device);
  case key_type::boolean_or_auto:
    return text == "auto" ? value{text, 0, {}} : read_boolean(text);
  case key_type::count_or_auto:
    if (text == "auto")
      return value{text, 0, {}};
    break;
  case key_type::count:
  case key_type::size:
  case key_type::duration_ms:
  case key_type::duration_us:
    break;
  }
  return read_number(key, text);
}

std::string text_of(const key_spec& key, const value& v) {
  if (!v.text.empty())
    return v.text;
  switch (key.type) {
  case key_type::name:
  case key_type::path:
  case key_type::host:
    return {};
  case key_type::addresses:
    return v.list.empty() ? std::string{} : list_text(v.list);
  case key_type::choices:
  case key_type::users:
  case key_type::endpoints:
  case key_type::devices:
    return list_text(v.list);
  case key_type::mode:
    return octal(v.number);
  case key_type::boolean:
  case key_type::boolean_or_auto:
    return v.number != 0 ? "true" : "false";
  case key_type::size:
    return format_size(v.number);
  case key_type::duration_ms:
    return format_duration_us(v.number * 1000);
  case key_type::duration_us:
    return format_duration_us(v.number);
  case key_type::choice:
    return std::string{key.choices[v.number]};
  case key_type::count:
  case key_type::count_or_auto:
    break;
  }
  return std::to_string(v.number);
}

status check_range(const key_spec& key, std::uint64_t number, std::string_view text) {
  bool below = number < key.min;
  if (!below && number <= key.max)
    return {};
  return {
    errc::invalid_argument, "'{}' is {}{}", text,
    below ? "below the least allowed, " : "above the most allowed, ",
    text_of(key, {{}, below ? key.min : key.max, {}})};
}

} // namespace millrace::config
