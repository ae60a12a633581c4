// How the rows of a section are written, and where their values go. Used by the table of keys.
#pragma once

#include <millrace/config/schema.hpp>
#include <millrace/core/assert.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace millrace::config {

/// Makes the rows of one section.
struct section {
  std::string_view path;

  using text = std::string_view;
  using number = std::uint64_t;
  using words = std::span<const std::string_view>;

  constexpr key_spec plain(text name, key_type type, text initial, text doc) const {
    return {path, name, type, initial, 0, 0, {}, false, {}, doc};
  }
  constexpr key_spec ranged(
    text name, key_type type, text initial, number min, number max, text doc) const {
    return {path, name, type, initial, min, max, {}, false, {}, doc};
  }
  constexpr key_spec count(text name, text initial, number min, number max, text doc) const {
    return ranged(name, key_type::count, initial, min, max, doc);
  }
  constexpr key_spec size(text name, text initial, number min, number max, text doc) const {
    return ranged(name, key_type::size, initial, min, max, doc);
  }
  constexpr key_spec ms(text name, text initial, number min, number max, text doc) const {
    return ranged(name, key_type::duration_ms, initial, min, max, doc);
  }
  constexpr key_spec choice(text name, text initial, words choices, text doc) const {
    return {path, name, key_type::choice, initial, 0, 0, choices, false, {}, doc};
  }
};

/// Keeps a value in a member of its section.
template <class Section, auto Member>
void put(Section& section, value&& v) {
  auto& field = section.*Member;
  using field_type = std::remove_reference_t<decltype(field)>;
  if constexpr (std::is_same_v<field_type, std::string>)
    field = std::move(v.text);
  else if constexpr (std::is_same_v<field_type, std::vector<std::string>>)
    field = std::move(v.list);
  else if constexpr (std::is_same_v<field_type, std::optional<std::uint32_t>>) {
    if (v.text != "auto")
      field = static_cast<std::uint32_t>(v.number);
  } else if constexpr (std::is_same_v<field_type, std::optional<bool>>) {
    if (v.text != "auto")
      field = v.number != 0;
  } else {
    field = static_cast<field_type>(v.number);
    MILLRACE_ASSERT(static_cast<std::uint64_t>(field) == v.number);
  }
}

} // namespace millrace::config
