// Every section of the configuration in one list: those of this room, and those that rooms and kinds hand in. The reader,
// the JSON schema and the documentation follow it.
#pragma once

#include <millrace/config/scalar.hpp>
#include <millrace/config/section.hpp>
#include <millrace/config/settings.hpp>

#include <string>
#include <vector>

namespace millrace::config {

inline constexpr std::size_t providers_max = 64; // of one node
inline constexpr std::size_t nodes_max = 256;    // of one file
inline constexpr std::size_t users_max = 256;
inline constexpr std::size_t devices_max = 64;
inline constexpr std::size_t name_bytes_max = 64;
/// Of the provider that a file without `providers` has.
inline constexpr auto default_provider_name = "fast";

/// What a provider takes of its node's memory.
struct memory_needs {
  std::uint64_t own_bytes = 0;    // of an arena of its own; 0: it uses the node's staging memory
  std::uint64_t window_bytes = 0; // of staging memory at a time; 0: it needs none
};

/// A kind of bucket: its name is that of its section.
struct bucket_section {
  section keys;
  memory_needs (*needs)(const option_set& options);
};

/// A section of the top level.
struct top_section {
  section keys;
  void* (*in)(settings& all); // null: `settings::options` keeps it

  void* edit(settings& all) const { return in ? in(all) : keys.edit(all.options); }
};

/// A key as the documentation has it.
struct documented_key {
  std::string_view section; // "staging", "providers[]"
  key_spec spec;
  value initial;
  std::vector<std::string_view> only_for; // the kinds of buckets that have it; empty: all

  std::string path() const; // "staging.size"
  /// The default as the file would have it; empty: none, or one that depends on other values.
  std::string initial_text() const { return spec.required ? "" : text_of(spec, initial); }
};

class schema {
public:
  /// `of_rooms`: sections beside those of this room; `buckets`: the kinds there are, the first being the default.
  schema(const std::vector<section>& of_rooms, std::vector<bucket_section> buckets);
  schema(const schema&) = delete;
  schema& operator=(const schema&) = delete;

  const std::vector<top_section>& sections() const noexcept { return sections_; }
  /// Keys of every provider, without those of its kind.
  const section& provider() const noexcept { return provider_; }
  const section& cluster() const noexcept { return cluster_; }
  const section& cluster_entry() const noexcept { return cluster_entry_; }

  const std::vector<bucket_section>& buckets() const noexcept { return buckets_; }
  const std::vector<std::string_view>& bucket_names() const noexcept { return bucket_names_; }
  /// The kind of that name, the first if there is none; null if there is no such kind.
  const bucket_section* bucket(std::string_view name) const noexcept;
  /// The value of a key that the provider's kind has; nothing if it has no such key.
  std::optional<value> find(const provider_settings& provider, std::string_view key) const;

  /// All keys of the file, section by section.
  std::vector<documented_key> keys() const;
  /// Sections, `providers` and `cluster`.
  std::vector<std::string_view> top_level_keys() const;

private:
  std::vector<top_section> sections_;
  std::vector<bucket_section> buckets_;
  std::vector<std::string_view> bucket_names_;
  section provider_;
  section cluster_;
  section cluster_entry_;
};

/// The JSON schema (draft 07) by which editors complete and check a configuration.
std::string json_schema(const schema& all);

/// The tables of docs/configuration.md, in Markdown: the keys that people set, and the others.
std::string markdown_table(const schema& all, bool expert);

/// A configuration of nothing but defaults. In YAML every key has its line and its meaning; what has no default, or is
/// not for the first kind of bucket, is a comment.
std::string default_yaml(const schema& all);
std::string default_json(const schema& all);

} // namespace millrace::config
