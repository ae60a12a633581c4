// The places of fields and their tables in the space of a working set.
#include <millrace/core/digest.hpp>
#include <millrace/core/model.hpp>
#include <millrace/core/placement.hpp>
#include <millrace/core/rounding.hpp>
#include <millrace/core/working_set.hpp>

#include <algorithm>
#include <bit>
#include <limits>
#include <string_view>
#include <unordered_set>

namespace millrace {

namespace {

constexpr std::uint64_t field_alignment = 4096; // a page: movers stream from its beginning
constexpr auto space_bytes_max = std::uint64_t{std::numeric_limits<std::int64_t>::max()};

status check_field(const set_info& set, const sample_field& field) {
  if (auto bad = validate(field.sample); !bad.ok())
    return bad.within("the field " + field.sample.name);
  for (auto& other : set.fields)
    if (&other != &field && other.sample.name == field.sample.name)
      return {errc::invalid_argument, "two fields have the name {}", field.sample.name};
  return {};
}

// The bytes of samples of one size.
status measure_equal(sample_field& field, std::uint64_t samples, bool& fits) {
  auto bytes = size_bytes(field.sample);
  if (!bytes)
    return bytes.error();
  if (*bytes == 0)
    return {errc::invalid_argument, "the field {}: its samples have no bytes", field.sample.name};
  field.bytes = *bytes;
  fits = fits && !__builtin_mul_overflow(samples, field.bytes, &field.data_bytes);
  field.space_bytes = field.data_bytes;
  return {};
}

// Samples that vary: their bytes are known, and the gaps between them are bounded.
status check_varying(sample_field& field, std::uint64_t samples) {
  auto row = varying_row_bytes(field.sample);
  if (!row)
    return row.error();
  field.bytes = 0;
  auto gaps = field.space_bytes - field.data_bytes;
  auto fits = field.data_bytes <= field.space_bytes && field.space_bytes <= space_bytes_max &&
    field.space_bytes % sample_alignment == 0 && field.data_bytes % *row == 0 &&
    gaps / sample_alignment <= samples && (samples > 0 || field.space_bytes == 0);
  return fits
    ? status{}
    : status{errc::invalid_argument, "the field {}: {} samples of {} bytes do not have {}",
             field.sample.name,      samples,
             field.data_bytes,       field.space_bytes};
}

status measure(sample_field& field, std::uint64_t samples, bool& fits) {
  return field.varies ? check_varying(field, samples) : measure_equal(field, samples, fits);
}

// Places `count` things of so many bytes each behind `end`. Returns their address.
std::uint64_t place(std::uint64_t& end, std::uint64_t count, std::uint64_t bytes, bool& fits) {
  auto begin = round_up(end, field_alignment);
  std::uint64_t length = 0;
  fits = fits && !__builtin_mul_overflow(count, bytes, &length) &&
    length <= space_bytes_max - field_alignment &&
    begin <= space_bytes_max - field_alignment - length;
  if (fits)
    end = begin + length;
  return begin;
}

std::uint64_t identity_of(const set_info& set, std::uint64_t samples) {
  running_digest all;
  auto add = [&](const auto& value) { all.add(&value, sizeof(value)); };
  add(samples);
  for (auto& field : set.fields) {
    all.add_text(field.sample.name);
    add(field.sample.type);
    add(std::uint64_t{field.sample.shape.size()});
    all.add(field.sample.shape.data(), field.sample.shape.size() * sizeof(std::uint64_t));
  }
  return all.value();
}

status wrong_division(const set_info& set, std::string_view why) {
  return {errc::invalid_argument, "working set {}: its division {}", set.name, why};
}

status check_nodes(const set_info& set) {
  auto& nodes = set.division.nodes;
  if (nodes.size() < 2 || nodes.size() > set_parts_max)
    return wrong_division(
      set, fmt::format("has {} parts, not 2 to {}", nodes.size(), set_parts_max));
  std::unordered_set<std::string_view> seen;
  for (auto& node : nodes)
    if (node.empty() || node.size() > member_text_max || !seen.insert(node).second)
      return wrong_division(set, "names a node twice, or one without a usable name");
  return {};
}

status check_division(const set_info& set) {
  auto& d = set.division;
  if (!is_divided(set))
    return d == set_division{} ? status{} : wrong_division(set, "has no nodes");
  if (auto bad = check_nodes(set); !bad.ok())
    return bad;
  auto parts = d.nodes.size();
  if (d.whole.is_nil() || d.index >= parts || d.fields.size() != set.fields.size())
    return wrong_division(set, "does not have this part");
  auto first = first_sample(d.samples, parts, d.index);
  if (set.samples != first_sample(d.samples, parts, d.index + 1) - first)
    return wrong_division(set, fmt::format("gives part {} other samples", d.index));
  for (std::size_t f = 0; f < d.fields.size(); ++f)
    if (
      d.fields[f].data_bytes < set.fields[f].data_bytes ||
      d.fields[f].space_bytes < set.fields[f].space_bytes)
      return wrong_division(set, "has fewer bytes than this part");
  return {};
}

status wrong_appends(const set_info& set, std::string_view why) {
  return {errc::invalid_argument, "working set {}: its appends {}", set.name, why};
}

// Adds the samples of an extension, and their bytes.
bool add_samples(set_info& whole, const appended_samples& more) {
  auto fits = !__builtin_add_overflow(whole.samples, more.samples, &whole.samples);
  auto add = [&](std::uint64_t& to, std::uint64_t bytes) {
    fits = !__builtin_add_overflow(to, bytes, &to) && fits;
  };
  for (std::size_t f = 0; f < whole.fields.size(); ++f) {
    add(whole.fields[f].data_bytes, more.fields[f].data_bytes);
    add(whole.fields[f].space_bytes, more.fields[f].space_bytes);
  }
  return fits;
}

// A digest of all files of a set: those of its preload, and of each append.
std::uint64_t source_of(const set_info& set) {
  running_digest all;
  auto add = [&](std::uint64_t value) { all.add(&value, sizeof(value)); };
  add(set.source);
  add(names_digest(set.left_out));
  for (auto& more : set.appended) {
    add(more.source);
    add(more.left_out);
  }
  return all.value();
}

status check_extensions(const set_info& set) {
  auto& all = set.appended;
  if (is_extension(set) && (is_window(set) || !all.empty()))
    return wrong_appends(set, "are appended to, or are a window");
  if (all.empty())
    return {};
  if (all.size() > appends_max)
    return wrong_appends(set, fmt::format("are {}; at most {}", all.size(), appends_max));
  if (is_window(set) || set.division.index > 0)
    return wrong_appends(set, "are those of a window, or of a part after the first one");
  for (std::size_t i = 0; i < all.size(); ++i)
    if (
      all[i].id.is_nil() || all[i].fields.size() != set.fields.size() ||
      (i > 0 && all[i].number <= all[i - 1].number))
      return wrong_appends(set, "have no ids, other fields, or are out of order");
  return {};
}

// A window has no places for fields: each value that it keeps has one of its own.
status make_window(set_info& set) {
  if (is_divided(set))
    return {errc::invalid_argument, "working set {}: a window lies on one data server", set.name};
  if (set.window_bytes > space_bytes_max - set.region_bytes)
    return {
      errc::invalid_argument, "working set {}: a window of {} bytes", set.name, set.window_bytes};
  for (auto& field : set.fields)
    field.base = field.table = 0;
  set.size_bytes = round_up(set.window_bytes, set.region_bytes);
  return {};
}

} // namespace

std::uint64_t first_sample(std::uint64_t samples, std::size_t parts, std::size_t index) noexcept {
  return index * (samples / parts) + std::min<std::uint64_t>(index, samples % parts);
}

std::size_t part_of(std::uint64_t samples, std::size_t parts, std::uint64_t sample) noexcept {
  auto each = samples / parts;
  auto larger = samples % parts; // parts that have one sample more
  auto in_larger = larger * (each + 1);
  return sample < in_larger ? sample / (each + 1) : larger + (sample - in_larger) / each;
}

result<set_info> base_of(const set_info& part) {
  if (auto bad = check_division(part); !bad.ok())
    return fail(bad);
  auto out = part;
  out.appended.clear();
  if (!is_divided(part))
    return out;
  out.id = part.division.whole;
  out.samples = part.division.samples;
  for (std::size_t f = 0; f < out.fields.size(); ++f) {
    out.fields[f].data_bytes = part.division.fields[f].data_bytes;
    out.fields[f].space_bytes = part.division.fields[f].space_bytes;
  }
  if (auto bad = place_fields(out); !bad.ok())
    return fail(bad);
  for (std::size_t f = 0; f < out.fields.size(); ++f)
    if (out.fields[f].data_bytes != part.division.fields[f].data_bytes)
      return fail(wrong_division(part, "has other bytes than its samples"));
  return out;
}

result<set_info> whole_of(const set_info& part) {
  if (auto bad = check_extensions(part); !bad.ok())
    return fail(bad);
  auto out = base_of(part);
  if (!out || part.appended.empty())
    return out;
  out->source = source_of(part);
  out->appended = part.appended;
  for (auto& more : part.appended)
    if (!add_samples(*out, more))
      return fail(wrong_appends(part, "have more bytes than 64 bits count"));
  auto bytes = *out;
  if (auto bad = place_fields(*out); !bad.ok())
    return fail(bad);
  out->identity = identity_of(*out, out->samples);
  for (std::size_t f = 0; f < out->fields.size(); ++f)
    if (out->fields[f].data_bytes != bytes.fields[f].data_bytes)
      return fail(wrong_appends(part, "have other bytes than their samples"));
  return out;
}

appended_samples appended_of(const set_info& part) {
  appended_samples out;
  out.id = is_divided(part) ? part.division.whole : part.id;
  out.number = part.extension.number;
  out.samples = is_divided(part) ? part.division.samples : part.samples;
  out.source = part.source;
  out.left_out = names_digest(part.left_out);
  out.fields = part.division.fields;
  if (is_divided(part))
    return out;
  out.fields.reserve(part.fields.size());
  for (auto& field : part.fields)
    out.fields.push_back({field.data_bytes, field.space_bytes});
  return out;
}

bool have_same_samples(const appended_samples& a, const set_info& files) noexcept {
  auto samples = is_divided(files) ? files.division.samples : files.samples;
  return a.samples == samples && a.source == files.source &&
    a.left_out == names_digest(files.left_out);
}

std::uint64_t preloaded_samples(const set_info& whole) noexcept {
  auto out = whole.samples;
  for (auto& more : whole.appended)
    out -= more.samples;
  return out;
}

static std::string text_of(const sample_field& field) {
  return fmt::format(
    "{} {}{}", field.sample.name, describe(field.sample), field.varies ? ", which varies" : "");
}

status check_appends(const set_info& set, const set_info& more) {
  if (is_window(set))
    return {
      errc::invalid_argument,
      "working set {} is a window, to which nothing is appended; unload it, and preload all files",
      set.name};
  if (set.fields.size() != more.fields.size())
    return {
      errc::invalid_argument, "working set {} has {} fields, and what is appended has {}", set.name,
      set.fields.size(), more.fields.size()};
  for (std::size_t f = 0; f < set.fields.size(); ++f) {
    auto& a = set.fields[f];
    auto& b = more.fields[f];
    if (a.sample != b.sample || a.varies != b.varies)
      return {
        errc::invalid_argument,
        "field {} of working set {} is {}, and that of what is appended is {}",
        f,
        set.name,
        text_of(a),
        text_of(b)};
  }
  return {};
}

result<std::uint64_t> varying_row_bytes(const tensor_desc& sample) {
  if (sample.shape.empty() || sample.shape.front() != 0)
    return fail(
      errc::invalid_argument, "the field {}: samples that vary have a first extent of 0, not {}",
      sample.name, describe(sample));
  auto bytes = row_bytes(sample);
  if (bytes && *bytes == 0)
    return fail(errc::invalid_argument, "the field {}: its samples have no bytes", sample.name);
  if (bytes && bits_per_element(sample.type) % 8 != 0)
    return fail(
      errc::invalid_argument, "the field {}: samples of {} cannot vary", sample.name,
      describe(sample));
  return bytes;
}

std::size_t names_bytes(const std::vector<std::string>& names) noexcept {
  std::size_t out = 0;
  for (auto& name : names)
    out += name.size() + sizeof(std::uint32_t);
  return out;
}

std::uint64_t names_digest(const std::vector<std::string>& names) noexcept {
  if (names.empty())
    return 0;
  running_digest all;
  for (auto& name : names)
    all.add_text(name);
  return all.value();
}

std::uint64_t region_count(const set_info& set) noexcept {
  return set.region_bytes == 0 ? 0 : (set.size_bytes + set.region_bytes - 1) / set.region_bytes;
}

status place_fields(set_info& set) {
  if (auto bad = validate_model_name(set.name); !bad.ok())
    return {errc::invalid_argument, "the name of a working set: {}", bad.detail()};
  if (
    !std::has_single_bit(set.region_bytes) || set.region_bytes < region_bytes_min ||
    set.region_bytes > region_bytes_max)
    return {
      errc::invalid_argument, "regions of {} bytes: they have a power of two, {} to {}",
      set.region_bytes, region_bytes_min, region_bytes_max};
  if (set.fields.empty() || set.fields.size() > set_fields_max)
    return {
      errc::invalid_argument, "working set {}: {} fields; it has 1 to {}", set.name,
      set.fields.size(), set_fields_max};
  if (auto bytes = names_bytes(set.left_out); bytes > left_out_bytes_max)
    return {
      errc::invalid_argument,
      "working set {}: the names that it leaves out have {} bytes; {} at most", set.name, bytes,
      left_out_bytes_max};
  auto fits = true;
  std::uint64_t end = 0;
  for (auto& field : set.fields) {
    auto bad = check_field(set, field);
    if (bad.ok())
      bad = measure(field, set.samples, fits);
    if (!bad.ok())
      return bad.within("working set " + set.name);
    field.base = place(end, 1, field.space_bytes, fits);
  }
  for (auto& field : set.fields)
    field.table = place(end, set.samples, entry_bytes(field), fits);
  if (!fits)
    return {
      errc::invalid_argument, "working set {}: {} samples have more bytes than 63 bits count",
      set.name, set.samples};
  set.size_bytes = end;
  set.identity = identity_of(set, is_divided(set) ? set.division.samples : set.samples);
  return is_window(set) ? make_window(set) : status{};
}

status validate(const set_info& set) {
  auto placed = set;
  if (auto bad = place_fields(placed); !bad.ok())
    return bad;
  if (placed != set)
    return {errc::invalid_argument, "working set {}: its fields lie elsewhere", set.name};
  auto whole = whole_of(set);
  return whole ? status{} : whole.error();
}

status validate(
  const sample_entry& entry, const set_info& set, std::size_t field, std::uint64_t sample) {
  auto& of = set.fields[field];
  auto at = entry.address - of.base;
  auto lies_there = entry.address >= of.base && at <= of.space_bytes &&
    entry.length <= of.space_bytes - at && entry.length <= of.data_bytes &&
    (!of.varies || entry.length % varying_row_bytes(of.sample).value_or(1) == 0);
  return lies_there ? status{}
                    : status{
                        errc::corrupt_data,
                        "working set {}, field {}: the entry of sample {} says {} bytes at {}, "
                        "which is not in the field; unload the set and preload it again",
                        set.name,
                        of.sample.name,
                        sample,
                        entry.length,
                        entry.address};
}

} // namespace millrace
