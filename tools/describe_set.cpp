// Prints a set's facts on two lines, and a table of its fields.
#include <millrace/tools/describe_set.hpp>
#include <millrace/tools/text.hpp>

#include <fmt/format.h>

#include <ostream>

namespace millrace::tools {

std::uint64_t samples_bytes(const set_info& set) {
  std::uint64_t all = 0;
  for (auto& field : set.fields)
    all += field.data_bytes;
  return all;
}

std::string checksum_text(std::uint64_t checksum) { return fmt::format("{:016x}", checksum); }

namespace {

// The first extent of samples that vary is null.
json shape_json(const sample_field& field) {
  json shape = field.sample.shape;
  if (field.varies)
    shape.front() = nullptr;
  return shape;
}

std::string sample_size(const sample_field& field, std::uint64_t samples) {
  if (!field.varies)
    return human_size(field.bytes);
  return samples == 0 ? "varies" : "mean " + human_size(field.data_bytes / samples);
}

} // namespace

std::string shape_text(const sample_field& field) {
  std::vector<std::string> extents;
  for (auto extent : field.sample.shape)
    extents.push_back(std::to_string(extent));
  if (field.varies)
    extents.front() = "*";
  return fmt::format("[{}]", fmt::join(extents, ", "));
}

std::string places_of(const set_info& set, const std::string& node) {
  return is_divided(set) ? joined(set.division.nodes) : node;
}

// Samples from `before` on that are divided among nodes.
static void add_parts(json& out, const set_info& set, std::uint64_t before, std::uint64_t samples) {
  auto& nodes = set.division.nodes;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    auto first = first_sample(samples, nodes.size(), i);
    auto count = first_sample(samples, nodes.size(), i + 1) - first;
    out.push_back({{"node", nodes[i]}, {"first", before + first}, {"samples", count}});
  }
}

// Of what was preloaded, and then of each append. Empty for a set that is not divided.
static json parts_json(const set_info& set) {
  json out = json::array();
  auto before = preloaded_samples(set);
  add_parts(out, set, 0, before);
  for (auto& more : set.appended) {
    add_parts(out, set, before, more.samples);
    before += more.samples;
  }
  return out;
}

static json appends_json(const set_info& set) {
  json out = json::array();
  for (auto& more : set.appended) {
    std::uint64_t bytes = 0;
    for (auto& field : more.fields)
      bytes += field.data_bytes;
    out.push_back(
      {{"samples", more.samples},
       {"samples_bytes", bytes},
       {"source", checksum_text(more.source)}});
  }
  return out;
}

json to_json(const set_info& set) {
  json fields = json::array();
  for (auto& field : set.fields)
    fields.push_back(
      {{"name", field.sample.name},
       {"dtype", to_string(field.sample.type)},
       {"shape", shape_json(field)},
       {"varies", field.varies},
       {"data_bytes", field.data_bytes},
       {"sample_bytes", field.varies ? json{} : json(field.bytes)}});
  return {
    {"name", set.name},
    {"id", to_string(set.id)},
    {"samples", set.samples},
    {"samples_bytes", samples_bytes(set)},
    {"size_bytes", set.size_bytes},
    {"window_bytes", set.window_bytes},
    {"regions", region_count(set)},
    {"region_bytes", set.region_bytes},
    {"identity", checksum_text(set.identity)},
    {"source", checksum_text(set.source)},
    {"preloaded_at_ns", set.preloaded_at_ns},
    {"owner", set.owner},
    {"while_used", set.while_used},
    {"parts", parts_json(set)},
    {"appends", appends_json(set)},
    {"left_out", set.left_out},
    {"fields", fields}};
}

void print(std::ostream& out, const set_info& set, const std::string& node) {
  out << printable(set.name) << ": " << counted(set.samples, "sample") << ", "
      << human_size(samples_bytes(set)) << " on " << printable(places_of(set, node))
      << ", preloaded " << human_time(set.preloaded_at_ns) << " by " << printable(set.owner)
      << (set.while_used ? ", goes with its last user\n" : "\n")
      << (is_window(set) ? "a window of " : "with tables ") << human_size(set.size_bytes) << " in "
      << counted(region_count(set), "region") << " of " << human_size(set.region_bytes)
      << ", identity for orders " << checksum_text(set.identity) << '\n';
  if (!set.appended.empty())
    out << counted(set.samples - preloaded_samples(set), "sample") << " came by "
        << counted(set.appended.size(), "append") << ", the last one "
        << counted(set.appended.back().samples, "sample") << '\n';
  if (!set.left_out.empty())
    out << "without " << counted(set.left_out.size(), "file")
        << " found damaged while it was preloaded, as " << printable(set.left_out.front()) << '\n';
  table fields{{"field", "dtype", "shape", ">sample"}};
  for (auto& field : set.fields)
    fields.add(
      {field.sample.name, std::string{to_string(field.sample.type)}, shape_text(field),
       sample_size(field, set.samples)});
  fields.print(out, "  ");
}

json to_json(const window_counts& counts) {
  return {{"size_bytes", counts.size_bytes},
          {"kept_bytes", counts.kept_bytes},
          {"kept", counts.kept},
          {"given", counts.given},
          {"missing", counts.missing},
          {"written", counts.written},
          {"refused", counts.refused},
          {"evicted", counts.evicted},
          {"damaged", counts.damaged}};
}

void print(std::ostream& out, const window_counts& counts) {
  out << "  keeps " << counted(counts.kept, "value") << ", " << human_size(counts.kept_bytes)
      << "; readers found " << counts.given << " and missed " << counts.missing << "; "
      << counts.evicted << " made room, " << counts.refused << " were not worth it, "
      << counts.damaged << " were damaged\n";
}

void add_json(json& into, const set_access& access) {
  auto& reads = into["reads"] = json::array();
  for (auto& part : access.parts)
    reads.push_back(
      {{"node", part.node},
       {"by", part.why.ok() ? json(part.by) : json{}},
       {"error", part.why.ok() ? json{} : json(part.why.to_string())}});
  into["processors"] = access.processors;
}

namespace {

std::string text_of(const part_access& part) {
  auto node = printable(part.node);
  if (!part.why.ok())
    return fmt::format("not from {} now ({})", node, printable(part.why.to_string()));
  return fmt::format("{}{} from {}", part.by == "mapped" ? "" : "by ", part.by, node);
}

} // namespace

void print(std::ostream& out, const set_access& access) {
  std::vector<std::string> ways;
  ways.reserve(access.parts.size());
  for (auto& part : access.parts)
    ways.push_back(text_of(part));
  out << "  this host reads it " << joined(ways) << "; threads that copy "
      << (access.processors.empty() ? "go where they write" : "stay on " + access.processors)
      << '\n';
}

} // namespace millrace::tools
