// A struct of options with its keys, without its type. Rooms and kinds hand sections to the schema.
#pragma once

#include <millrace/config/option_set.hpp>
#include <millrace/core/status.hpp>

namespace millrace::config {

struct section {
  std::string_view name; // "limits"
  std::vector<key_spec> keys;
  std::vector<value> initial; // the value of each key that is not given
  void (*put)(void* options, std::size_t key, value&& v) = nullptr;
  value (*get)(const void* options, std::size_t key) = nullptr;
  std::optional<misfit> (*check)(const void* options) = nullptr;
  /// Return these options within a set.
  void* (*edit)(option_set& set) = nullptr;
  const void* (*find)(const option_set& set) = nullptr;
  std::span<const gone_key> gone = {};

  /// Returns the number of the key of that name; nothing if there is none.
  std::optional<std::size_t> number_of(std::string_view key) const;
};

template <class Options>
section section_of(std::string_view name) {
  section s;
  s.name = name;
  s.gone = keys_of<Options>().gone;
  const Options defaults{};
  for (auto& row : keys_of<Options>().rows) {
    s.keys.push_back(row.spec);
    s.initial.push_back(row.get(defaults));
  }
  s.put = [](void* options, std::size_t key, value&& v) {
    keys_of<Options>().rows[key].put(*static_cast<Options*>(options), std::move(v));
  };
  s.get = [](const void* options, std::size_t key) {
    return keys_of<Options>().rows[key].get(*static_cast<const Options*>(options));
  };
  s.check = [](const void* options) {
    auto check = keys_of<Options>().check;
    return check ? check(*static_cast<const Options*>(options)) : std::nullopt;
  };
  s.edit = [](option_set& set) -> void* { return &set.edit<Options>(); };
  s.find = [](const option_set& set) -> const void* { return &set.of<Options>(); };
  return s;
}

/// Returns a key and its value: "limits.windows_max (8)". `path`: of the section, "limits" or
/// "providers[0]".
std::string text_of(
  const section& s, const void* options, std::string_view key, std::string_view path);
/// Returns a misfit in words.
std::string text_of(
  const section& s, const void* options, const misfit& fault, std::string_view path);

/// Checks options that do not come from a file: the bounds of every key, and whether the values fit
/// together.
/// Errors: `invalid_argument`: "limits.stores_max: '0' is below the least allowed, 1".
[[nodiscard]] status check_options(const section& s, const void* options);

template <class Options>
[[nodiscard]] status check_options(std::string_view name, const Options& options) {
  return check_options(section_of<Options>(name), &options);
}

} // namespace millrace::config
