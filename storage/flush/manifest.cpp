// Manifests as JSON.
#include <millrace/storage/flush/manifest.hpp>

#include <nlohmann/json.hpp>

#include <charconv>

namespace millrace::storage {

namespace {

using json = nlohmann::ordered_json;

constexpr auto format_name = "millrace-flushed";
constexpr std::uint64_t format_version = 1;

std::string hex(std::uint64_t value) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text(16, '0');
  for (std::size_t i = 16; i-- > 0; value >>= 4)
    text[i] = digits[value & 15];
  return text;
}

std::uint64_t number_of(const std::string& text) {
  std::uint64_t value = 0;
  auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (bad != std::errc{} || end != text.data() + text.size())
    throw std::invalid_argument{"a digest that is no number"};
  return value;
}

json to_tree(const flushed_shard& shard) {
  json digests = json::array();
  for (auto& [name, value] : shard.digests)
    digests.push_back({name, hex(value)});
  return {
    {"rank", shard.rank},
    {"file", shard.file},
    {"size_bytes", shard.size_bytes},
    {"saved_at_ns", shard.saved_at_ns},
    {"axes", shard.axes},
    {"metadata", shard.metadata},
    {"xxh3_64", digests}};
}

flushed_shard shard_of(const json& tree) {
  flushed_shard shard;
  shard.rank = tree.at("rank").get<std::uint32_t>();
  shard.file = tree.at("file").get<std::string>();
  shard.size_bytes = tree.at("size_bytes").get<std::uint64_t>();
  shard.saved_at_ns = tree.at("saved_at_ns").get<std::uint64_t>();
  shard.axes = tree.at("axes").get<text_pairs>();
  shard.metadata = tree.at("metadata").get<text_pairs>();
  for (auto& one : tree.at("xxh3_64"))
    shard.digests.emplace_back(
      one.at(0).get<std::string>(), number_of(one.at(1).get<std::string>()));
  return shard;
}

// May throw what the library throws.
result<flush_manifest> manifest_of(const json& tree) {
  if (tree.at("format").get<std::string>() != format_name)
    return fail(errc::corrupt_data, "no manifest of flushed checkpoints");
  if (auto version = tree.at("version").get<std::uint64_t>(); version != format_version)
    return fail(
      errc::unsupported_version,
      "a manifest of version " + std::to_string(version) + "; this is version " +
        std::to_string(format_version));
  flush_manifest manifest;
  manifest.model = tree.at("model").get<std::string>();
  manifest.step = tree.at("step").get<std::uint64_t>();
  manifest.world_size = tree.at("world_size").get<std::uint32_t>();
  manifest.saved_at_ns = tree.at("saved_at_ns").get<std::uint64_t>();
  for (auto& one : tree.at("shards")) {
    manifest.shards.push_back(shard_of(one));
    auto& file = manifest.shards.back().file;
    // It names a file of its own directory, and nothing else.
    if (file.empty() || file.front() == '.' || file.find('/') != std::string::npos)
      return fail(errc::corrupt_data, "a manifest names the file " + file);
  }
  return manifest;
}

} // namespace

std::string to_json(const flush_manifest& manifest) {
  json shards = json::array();
  for (auto& shard : manifest.shards)
    shards.push_back(to_tree(shard));
  json tree = {{"format", format_name},
               {"version", format_version},
               {"model", manifest.model},
               {"step", manifest.step},
               {"world_size", manifest.world_size},
               {"saved_at_ns", manifest.saved_at_ns},
               {"shards", shards}};
  return tree.dump(1) + "\n";
}

result<flush_manifest> parse_flush_manifest(std::string_view text) {
  try {
    return manifest_of(json::parse(text));
  } catch (const std::exception& error) {
    return fail(errc::corrupt_data, std::string{"a manifest cannot be read: "} + error.what());
  }
}

} // namespace millrace::storage
