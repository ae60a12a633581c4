// Every section of the configuration in one list: those of this folder, and those that other rooms,
// drivers and buckets hand in. The reader, the JSON schema and the documentation use the list.
#pragma once

#include <millrace/config/scalar.hpp>
#include <millrace/config/section.hpp>
#include <millrace/config/settings.hpp>

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace millrace::config {

inline constexpr std::size_t providers_max = 64; // the most that one node has
inline constexpr std::size_t nodes_max = 256;    // the most that one file has
inline constexpr std::size_t users_max = 256;
inline constexpr std::size_t devices_max = 64;
inline constexpr std::size_t name_bytes_max = 64;
/// The name of the provider in a file without `providers`.
inline constexpr auto default_provider_name = "fast";

/// How much memory of its node a provider takes.
struct memory_needs {
  std::uint64_t own_bytes = 0;    // the size of its own arena; 0: it uses the node's staging memory
  std::uint64_t heap_bytes = 0;   // the most that caches and descriptions take
  std::uint64_t window_bytes = 0; // the staging memory used at a time; 0: none
  std::uint64_t file_bytes = 0;   // the size of a file that the kernel keeps in memory
  bool snapshots = false;         // it may need the staging pieces of `checkpoints`, too
};

/// A kind of bucket, which has the name of its section.
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

/// Returns the first fault among values of different sections. It names keys by their whole paths:
/// "limits.requests_size".
using joint_check = std::optional<misfit> (*)(const settings& all);

/// A key as the documentation shows it.
struct documented_key {
  std::string_view section; // "staging", "providers[]"
  key_spec spec;
  value initial;
  std::vector<std::string_view> only_for; // the kinds of buckets that have it; empty: all
  bool of_default_kind = true;            // the first kind has it, or it is none of a bucket

  std::string path() const; // "staging.size"
  /// Returns the default as the file would have it. Empty: there is none, or it depends on other
  /// values.
  std::string initial_text() const { return spec.required ? "" : text_of(spec, initial); }
};

class schema {
public:
  /// `of_rooms`: the sections beside those of this folder. `buckets`: the kinds; the first one is
  /// the default.
  schema(
    const std::vector<section>& of_rooms, std::vector<bucket_section> buckets,
    joint_check check_jointly);
  schema(const schema&) = delete;
  schema& operator=(const schema&) = delete;

  const std::vector<top_section>& sections() const noexcept { return sections_; }
  std::optional<misfit> check_jointly(const settings& all) const { return check_jointly_(all); }
  /// The keys of every provider, without those of its kind.
  const section& provider() const noexcept { return provider_; }
  const section& cluster() const noexcept { return cluster_; }
  const section& cluster_entry() const noexcept { return cluster_entry_; }

  const std::vector<bucket_section>& buckets() const noexcept { return buckets_; }
  const std::vector<std::string_view>& bucket_names() const noexcept { return bucket_names_; }
  /// Returns the kind of that name; the first kind for an empty name; null if there is none.
  const bucket_section* bucket(std::string_view name) const noexcept;
  /// Returns the keys of the provider's kind; none if there is no such kind.
  std::span<const key_spec> keys_of_kind(const provider_settings& provider) const noexcept;
  /// Returns the first one of them with that use; null if there is none.
  const key_spec* key_of(const provider_settings& provider, key_use use) const noexcept;
  std::optional<value> find(const provider_settings& provider, key_use use) const;
  /// Returns the value of a key of the provider's kind; nothing if the kind has no such key.
  std::optional<value> find(const provider_settings& provider, std::string_view key) const;

  /// Returns the paths and values of the keys with that use in the sections of the top level.
  std::vector<std::pair<std::string, value>> find(const settings& all, key_use use) const;

  /// Returns all keys of the file, section by section.
  std::vector<documented_key> keys() const;
  /// Returns the sections, `providers` and `cluster`.
  std::vector<std::string_view> top_level_keys() const;

private:
  std::vector<top_section> sections_;
  std::vector<bucket_section> buckets_;
  joint_check check_jointly_;
  std::vector<std::string_view> bucket_names_;
  section provider_;
  section cluster_;
  section cluster_entry_;
};

/// Returns the JSON schema (draft 07) by which editors complete and check a configuration.
std::string json_schema(const schema& all);

/// What the documentation says of a key. Words of the file stand in backticks.
struct key_row {
  std::string path; // "staging.size"
  std::string_view type;
  std::string initial;
  std::string range; // empty: any
  std::string meaning;
  bool expert = false;
};

/// Returns the rows of all keys, section by section.
std::vector<key_row> key_rows(const schema& all);

/// Returns the tables of docs/configuration.md, in Markdown: the keys that people set, or the
/// others (`expert`).
std::string markdown_table(const schema& all, bool expert);

/// Returns a configuration of defaults. In YAML every key has its line and its meaning. A key that
/// has no default, or does not belong to the first kind of bucket, is commented out.
std::string default_yaml(const schema& all);
std::string default_json(const schema& all);

} // namespace millrace::config
