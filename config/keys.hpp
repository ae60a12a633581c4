// The keys of the configuration: a table beside each struct of options says what each key accepts
// and means, and which member keeps it. Used by the reader, the JSON schema and the documentation.
#pragma once

#include <millrace/core/assert.hpp>

#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace millrace::config {

inline constexpr std::uint64_t kib = 1024;
inline constexpr std::uint64_t mib = 1024 * kib;
inline constexpr std::uint64_t gib = 1024 * mib;
inline constexpr std::uint64_t tib = 1024 * gib;

/// The type of a key, which decides how the text of a value is read.
enum class key_type : std::uint8_t {
  name,           // 1 to 64 of A-Z a-z 0-9 . _ -
  path,           // a path of the file system
  addresses,      // one or several of unix:/abs/path and tls://host:port
  host,           // a name or a number
  mode,           // permission bits in octal
  boolean,        // true, false
  count,          // a whole number
  size,           // bytes: 4096, 64KiB, 1GiB
  duration_ms,    // 500ms, 5s, 2m; kept in milliseconds
  duration_us,    // 50us; kept in microseconds
  choice,         // one of `choices`
  choices,        // a list of one or more of `choices`, each once
  users,          // a list of user names or uids
  endpoints,      // a list of numeric addresses with ports
  devices,        // a list of devices, with or without a port
  count_or_auto,  // a whole number, or `auto`
  boolean_or_auto // true, false, or `auto`
};

/// Tells code outside of a kind what a key is for, whatever its name is in the kind.
enum class key_use : std::uint8_t {
  none,
  for_peers, // memory that peers make the node take under load, at most
  place,     // the path where a provider keeps what it has
  apart,     // a path that may neither lie in the place of a provider nor contain it
  capacity,  // the size of what a provider may keep
  window     // the size of a provider's windows
};

/// One key: what it accepts and what it means.
struct key_spec {
  std::string_view name;
  key_type type = key_type::count;
  std::string_view doc;  // one line
  std::uint64_t min = 0; // for counts, sizes (in bytes) and durations (in their unit)
  std::uint64_t max = 0;
  std::span<const std::string_view> choices = {}; // for an enumeration: in the order of its values
  bool required = false;
  bool expert = false; // the documentation lists it in a second table: few people set it
  key_use use = key_use::none;
  std::uint64_t advised_min = 0;       // of a provider's key; less is allowed
  std::string_view below_advised = {}; // what may happen then, as in "models may be lost"
};

using key_text = std::string_view;

constexpr key_spec plain(key_text name, key_type type, key_text doc) { return {name, type, doc}; }
constexpr key_spec ranged(
  key_text name, key_type type, std::uint64_t min, std::uint64_t max, key_text doc) {
  return {name, type, doc, min, max};
}
constexpr key_spec count(key_text name, std::uint64_t min, std::uint64_t max, key_text doc) {
  return ranged(name, key_type::count, min, max, doc);
}
constexpr key_spec size(key_text name, std::uint64_t min, std::uint64_t max, key_text doc) {
  return ranged(name, key_type::size, min, max, doc);
}
constexpr key_spec ms(key_text name, std::uint64_t min, std::uint64_t max, key_text doc) {
  return ranged(name, key_type::duration_ms, min, max, doc);
}
constexpr key_spec boolean(key_text name, key_text doc) {
  return plain(name, key_type::boolean, doc);
}
constexpr key_spec choice(key_text name, std::span<const key_text> choices, key_text doc) {
  return {name, key_type::choice, doc, 0, 0, choices};
}
constexpr key_spec required(key_spec key) {
  key.required = true;
  return key;
}
constexpr key_spec expert(key_spec key) {
  key.expert = true;
  return key;
}
constexpr key_spec used_as(key_use use, key_spec key) {
  key.use = use;
  return key;
}
constexpr key_spec advised(key_spec key, std::uint64_t min, key_text below) {
  key.advised_min = min;
  key.below_advised = below;
  return key;
}

/// A value as read or kept. A number is in the unit of its key, or is the index of a choice. `auto`
/// is text.
struct value {
  std::string text;
  std::uint64_t number = 0;
  std::vector<std::string> list;

  friend bool operator==(const value&, const value&) = default;
};

/// A key and the member of `Options` that keeps its value.
template <class Options>
struct bound_key {
  key_spec spec;
  void (*put)(Options&, value&&);
  value (*get)(const Options&);
};

/// A fault that the bounds of a key do not show: a wrong value, or two values that do not fit
/// together. The error reads "SECTION.key (VALUE) what SECTION.other (VALUE)".
struct misfit {
  std::string_view key;
  std::string_view what;
  std::string_view other = {};
};

/// A key or a value of earlier versions. The reader refuses it and gives the remedy.
struct gone_key {
  std::string_view key;
  std::string_view value; // empty: the key is gone, whatever its value
  std::string_view remedy;
};

template <class Options>
struct key_table {
  std::span<const bound_key<Options>> rows;
  /// Returns the first fault among the values, if there is one. Null: there is nothing to check.
  std::optional<misfit> (*check)(const Options&) = nullptr;
  std::span<const gone_key> gone = {};
};

/// The keys of `Options`. Every struct of options has a specialization, declared beside the struct.
template <class Options>
key_table<Options> keys_of();

namespace detail {

template <class Member>
struct owner_of;
template <class Owner, class Field>
struct owner_of<Field Owner::*> {
  using type = Owner;
};

template <auto First, auto... Rest>
constexpr auto& reach(auto& options) {
  if constexpr (sizeof...(Rest) == 0)
    return options.*First;
  else
    return reach<Rest...>(options.*First);
}

template <class Field>
void put(Field& field, value&& v) {
  field = static_cast<Field>(v.number);
  MILLRACE_ASSERT(static_cast<std::uint64_t>(field) == v.number);
}
inline void put(std::string& field, value&& v) { field = std::move(v.text); }
inline void put(std::vector<std::string>& field, value&& v) { field = std::move(v.list); }
template <class T>
void put(std::optional<T>& field, value&& v) {
  field.reset();
  if (v.text != "auto")
    put(field.emplace(), std::move(v));
}

template <class Field>
value get(const Field& field) {
  return {{}, static_cast<std::uint64_t>(field), {}};
}
inline value get(const std::string& field) { return {field, 0, {}}; }
inline value get(const std::vector<std::string>& field) { return {{}, 0, field}; }
template <class T>
value get(const std::optional<T>& field) {
  return field ? get(*field) : value{"auto", 0, {}};
}

} // namespace detail

/// Binds a key to a member, or to a member of a member:
/// `key<&net_options::streams>(count("streams", 1, 64, "…"))`.
template <auto First, auto... Rest>
constexpr auto key(const key_spec& spec) {
  using options = typename detail::owner_of<decltype(First)>::type;
  return bound_key<options>{
    spec,
    [](options& o, value&& v) { detail::put(detail::reach<First, Rest...>(o), std::move(v)); },
    [](const options& o) { return detail::get(detail::reach<First, Rest...>(o)); }};
}

} // namespace millrace::config
