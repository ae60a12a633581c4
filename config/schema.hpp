// Every key of the configuration in one table. The reader, the JSON schema and the docs follow it.
#pragma once

#include <millrace/config/address.hpp>
#include <millrace/config/settings.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::config {

/// How the text of a value is read.
enum class key_type : std::uint8_t {
  name,           // 1 to 64 of A-Z a-z 0-9 . _ -
  path,           // of the file system
  addresses,      // one or several of unix:/abs/path and tls://host:port
  host,           // a name or a number
  mode,           // permission bits in octal
  boolean,        // true, false
  count,          // a whole number
  size,           // bytes: 4096, 64KiB, 1GiB
  duration_ms,    // 500ms, 5s, 2m; kept in milliseconds
  duration_us,    // 50us; kept in microseconds
  choice,         // one of `choices`
  choices,        // a list of different ones of `choices`, at least one
  users,          // a list of user names or uids
  endpoints,      // a list of numeric addresses with ports
  devices,        // a list of RDMA devices, with or without a port
  count_or_auto,  // a whole number, or `auto`
  boolean_or_auto // true, false, or `auto`
};

/// One key: what it accepts, what it is without being given, what it means.
struct key_spec {
  std::string_view section; // "staging", "providers[]", "cluster.nodes[]"
  std::string_view name;
  key_type type;
  std::string_view default_text; // as the file would have it; empty: none
  std::uint64_t min = 0;         // of count, size (bytes) and durations (their unit)
  std::uint64_t max = 0;
  std::span<const std::string_view> choices;
  bool required = false;
  std::span<const std::string_view> only_for; // the buckets that have this key; empty: all
  std::string_view doc;                       // one line
};

/// True if a bucket of that kind has the key.
bool is_for(const key_spec& key, std::string_view bucket) noexcept;

/// The kinds of buckets, in the order of `bucket_kind`.
std::span<const std::string_view> bucket_names();

/// "staging.size".
std::string path_of(const key_spec& key);

/// All keys, section by section, in the order of the documentation.
std::span<const key_spec> schema();

/// Keys of the top level: sections, `providers` and `cluster`.
std::span<const std::string_view> top_level_keys();

inline constexpr std::size_t providers_max = 64; // of one node
inline constexpr std::size_t nodes_max = 256;    // of one file
inline constexpr std::size_t users_max = 256;
inline constexpr std::size_t devices_max = 64;
inline constexpr std::size_t name_bytes_max = 64;

/// The JSON schema (draft 07) by which editors complete and check a configuration.
std::string json_schema();

/// The table of docs/configuration.md, in Markdown.
std::string markdown_table();

/// A value read and within its range: the number in the unit of its key, or a choice's index.
struct value {
  std::string text;
  std::uint64_t number = 0;
  std::vector<std::string> list;
};

/// A key and the member of `Section` that keeps it.
template <class Section>
struct bound_key {
  key_spec spec;
  void (*assign)(Section&, value&&);
};

template <class Section>
std::span<const bound_key<Section>> keys_of();
template <>
std::span<const bound_key<node_settings>> keys_of();
template <>
std::span<const bound_key<staging_settings>> keys_of();
template <>
std::span<const bound_key<transport_settings>> keys_of();
template <>
std::span<const bound_key<shm_settings>> keys_of();
template <>
std::span<const bound_key<tcp_settings>> keys_of();
template <>
std::span<const bound_key<verbs_settings>> keys_of();
template <>
std::span<const bound_key<staged_settings>> keys_of();
template <>
std::span<const bound_key<channel_settings>> keys_of();
template <>
std::span<const bound_key<security_settings>> keys_of();
template <>
std::span<const bound_key<cluster_settings>> keys_of();
template <>
std::span<const bound_key<limits_settings>> keys_of();
template <>
std::span<const bound_key<checkpoint_settings>> keys_of();
template <>
std::span<const bound_key<client_settings>> keys_of();
template <>
std::span<const bound_key<provider_settings>> keys_of();
template <>
std::span<const bound_key<cluster_node>> keys_of();

} // namespace millrace::config
