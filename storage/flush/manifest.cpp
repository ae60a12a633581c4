// Descriptions and manifests as JSON. Called by `model_directory`.
#include <millrace/storage/flush/manifest.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <charconv>
#include <concepts>
#include <utility>

namespace millrace::storage::flush {

using namespace archive;

namespace {

using json = nlohmann::ordered_json;

constexpr auto manifest_name = "millrace-flushed";
constexpr auto description_name = "millrace-flushed-shard";
constexpr std::uint64_t format_version = 1;

std::uint64_t number_of(const std::string& text) {
  std::uint64_t value = 0;
  auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (bad != std::errc{} || end != text.data() + text.size())
    throw std::invalid_argument{"a digest that is no number"};
  return value;
}

// The JSON library converts negative numbers, fractions and numbers that are too large silently.
template <std::unsigned_integral T>
T whole_number(const json& tree, const char* key) {
  auto& value = tree.at(key);
  if (!value.is_number_unsigned() || !std::in_range<T>(value.get<std::uint64_t>()))
    throw std::invalid_argument{fmt::format("{} is {}", key, value.dump().substr(0, 64))};
  return value.get<T>();
}

json to_tree(const flushed_shard& shard) {
  return {
    {"rank", shard.rank},
    {"file", shard.file},
    {"size_bytes", shard.size_bytes},
    {"saved_at_ns", shard.saved_at_ns}};
}

result<flushed_shard> shard_of(const json& tree) {
  flushed_shard shard;
  shard.rank = whole_number<std::uint32_t>(tree, "rank");
  shard.file = tree.at("file").get<std::string>();
  shard.size_bytes = whole_number<std::uint64_t>(tree, "size_bytes");
  shard.saved_at_ns = whole_number<std::uint64_t>(tree, "saved_at_ns");
  // A manifest may only name files of its own directory.
  if (shard.file.empty() || shard.file.front() == '.' || shard.file.find('/') != std::string::npos)
    return fail(errc::corrupt_data, "a manifest names the file {}", shard.file);
  return shard;
}

status check_format(const json& tree, const char* name) {
  if (tree.at("format").get<std::string>() != name)
    return {errc::corrupt_data, "it is not a {}", name};
  if (auto version = whole_number<std::uint64_t>(tree, "version"); version != format_version)
    return {
      errc::unsupported_version, "it has version {}; this build reads version {}", version,
      format_version};
  return {};
}

// These may throw the exceptions of the JSON library.
result<shard_description> description_of(const json& tree) {
  if (auto bad = check_format(tree, description_name); !bad.ok())
    return fail(bad);
  auto shard = shard_of(tree);
  if (!shard)
    return fail(shard.error());
  shard_description description;
  description.model = tree.at("model").get<std::string>();
  description.step = whole_number<std::uint64_t>(tree, "step");
  description.world_size = whole_number<std::uint32_t>(tree, "world_size");
  description.shard = std::move(*shard);
  description.axes = tree.at("axes").get<text_pairs>();
  description.metadata = tree.at("metadata").get<text_pairs>();
  for (auto& one : tree.at("xxh3_64"))
    description.digests.emplace_back(
      one.at(0).get<std::string>(), number_of(one.at(1).get<std::string>()));
  return description;
}

result<flush_manifest> manifest_of(const json& tree) {
  if (auto bad = check_format(tree, manifest_name); !bad.ok())
    return fail(bad);
  flush_manifest manifest;
  manifest.model = tree.at("model").get<std::string>();
  manifest.step = whole_number<std::uint64_t>(tree, "step");
  manifest.world_size = whole_number<std::uint32_t>(tree, "world_size");
  manifest.saved_at_ns = whole_number<std::uint64_t>(tree, "saved_at_ns");
  for (auto& one : tree.at("shards")) {
    auto shard = shard_of(one);
    if (!shard)
      return fail(shard.error());
    manifest.shards.push_back(std::move(*shard));
  }
  return manifest;
}

template <class Read>
auto parse(std::string_view text, Read read) -> decltype(read(json{})) {
  try {
    return read(json::parse(text));
  } catch (const std::exception& error) {
    return fail(errc::corrupt_data, "it cannot be read: {}", error.what());
  }
}

} // namespace

std::string to_json(const shard_description& description) {
  json tree = {
    {"format", description_name},
    {"version", format_version},
    {"model", description.model},
    {"step", description.step},
    {"world_size", description.world_size}};
  tree.update(to_tree(description.shard));
  json digests = json::array();
  for (auto& [name, value] : description.digests)
    digests.push_back({name, fmt::format("{:016x}", value)});
  tree["axes"] = description.axes;
  tree["metadata"] = description.metadata;
  tree["xxh3_64"] = std::move(digests);
  return tree.dump(1) + "\n";
}

std::string to_json(const flush_manifest& manifest) {
  json shards = json::array();
  for (auto& shard : manifest.shards)
    shards.push_back(to_tree(shard));
  json tree = {
    {"format", manifest_name},
    {"version", format_version},
    {"model", manifest.model},
    {"step", manifest.step},
    {"world_size", manifest.world_size},
    {"saved_at_ns", manifest.saved_at_ns},
    {"shards", shards}};
  return tree.dump(1) + "\n";
}

result<shard_description> parse_shard_description(std::string_view text) {
  return parse(text, description_of);
}

result<flush_manifest> parse_flush_manifest(std::string_view text) {
  return parse(text, manifest_of);
}

} // namespace millrace::storage::flush
