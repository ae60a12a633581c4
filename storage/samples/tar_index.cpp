// Takes the entries of an archive one after another, and closes a sample when the key changes.
#include <millrace/storage/samples/label_file.hpp>
#include <millrace/storage/samples/tar_index.hpp>

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace millrace::storage::samples {

namespace {

constexpr std::uint64_t number_bytes_max = 64; // of the text

const char* why_not(tar_entry_kind kind) {
  switch (kind) {
  case tar_entry_kind::link:
    return "a link";
  case tar_entry_kind::sparse_file:
    return "a sparse file";
  default:
    return "no regular file";
  }
}

std::optional<std::int64_t> number_in(std::string_view text) {
  constexpr std::string_view blank = " \t\r\n";
  auto begin = text.find_first_not_of(blank);
  if (begin == std::string_view::npos)
    return std::nullopt;
  return parse_label(text.substr(begin, text.find_last_not_of(blank) + 1 - begin));
}

// Where the bytes of an archive end at most.
struct archive_bound {
  std::uint64_t size_bytes = 0;
  bool is_plain = true;

  std::uint64_t end() const {
    std::uint64_t out = 0;
    auto is_much = __builtin_mul_overflow(size_bytes, tar_unpacked_ratio_max, &out) ||
      __builtin_add_overflow(out, tar_unpacked_more_bytes, &out);
    return is_plain ? size_bytes : is_much ? UINT64_MAX : out;
  }

  status check(std::uint64_t offset, std::uint64_t length, const std::string& name) const {
    if (offset <= end() && length <= end() - offset)
      return {};
    if (!is_plain)
      return {
        errc::corrupt_data,
        "{}: without its compression the archive has more than {} bytes, {} times those that it "
        "has; unpack it before, if it is to be so",
        name, end(), tar_unpacked_ratio_max};
    return {errc::corrupt_data,
            "it is cut short: {} has {} bytes at {}, the archive {}",
            name,
            length,
            offset,
            size_bytes};
  }
};

class indexing {
public:
  indexing(tar_stream& from, const archive_bound& bound, tar_totals& totals)
    : from_(from), bound_(bound), totals_(totals) {}

  status add(const tar_entry& entry) {
    if (auto bad = check_bounds(entry); !bad.ok())
      return bad;
    auto name = divide_tar_name(entry.name);
    if (!name || entry.kind == tar_entry_kind::folder)
      return {};
    if (samples_.empty() || samples_.back().key != name->key)
      if (auto bad = begin(name->key); !bad.ok())
        return bad;
    return entry.kind == tar_entry_kind::file ? add_part(*name, entry)
                                              : spoil(*name, why_not(entry.kind));
  }

  std::vector<tar_sample> take() && { return std::move(samples_); }

private:
  status check_bounds(const tar_entry& entry) const {
    if (entry.name.size() > tar_name_bytes_max)
      return {
        errc::invalid_argument, "a name has {} bytes; at most {} are read", entry.name.size(),
        tar_name_bytes_max};
    return entry.kind == tar_entry_kind::file
      ? bound_.check(entry.offset, entry.size_bytes, entry.name)
      : status{};
  }

  status begin(const std::string& key) {
    if (!keys_.insert(key).second)
      return {
        errc::invalid_argument,
        "the files of {} do not lie beside each other; sort the archive by name", key};
    totals_.keys_bytes += key.size();
    if (++totals_.samples > tar_samples_max || totals_.keys_bytes > tar_keys_bytes_max)
      return {
        errc::invalid_argument, "{} samples with {} bytes of names: at most {} and {} make a set",
        totals_.samples,        totals_.keys_bytes,
        tar_samples_max,        tar_keys_bytes_max};
    samples_.push_back({key, {}, {}});
    return {};
  }

  status add_part(const tar_name& name, const tar_entry& entry) {
    auto extension = totals_.extensions.number_of(name.extension);
    if (!extension)
      return extension.error();
    auto& parts = samples_.back().parts;
    if (std::ranges::find(parts, *extension, &tar_part::extension) != parts.end())
      return spoil(name, "there twice");
    tar_part part{*extension, entry.offset, entry.size_bytes, std::nullopt};
    if (name.extension == tar_number_extension && entry.size_bytes <= number_bytes_max) {
      auto text = from_.bytes(entry.size_bytes);
      if (!text)
        return text.error();
      part.number = number_in(*text);
    }
    parts.push_back(part);
    return {};
  }

  // The first reason counts.
  status spoil(const tar_name& name, const char* why) {
    auto& sample = samples_.back();
    if (sample.why.ok())
      sample.why = {errc::corrupt_data, "its {} is {}", name.extension, why};
    return {};
  }

  tar_stream& from_;
  const archive_bound& bound_;
  tar_totals& totals_;
  std::vector<tar_sample> samples_;
  std::unordered_set<std::string> keys_;
};

} // namespace

std::optional<tar_name> divide_tar_name(std::string_view name) {
  auto last = name.find_last_of('/') + 1; // 0 if there is none
  auto dot = name.find('.', last);
  if (dot == std::string_view::npos || dot == last || dot + 1 == name.size())
    return std::nullopt;
  tar_name out{std::string{name.substr(0, dot)}, std::string{name.substr(dot + 1)}};
  for (auto& c : out.extension)
    c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

result<std::uint32_t> tar_extensions::number_of(const std::string& name) {
  if (auto found = numbers_.find(name); found != numbers_.end())
    return found->second;
  if (names_.size() == tar_extensions_max)
    return fail(
      errc::invalid_argument,
      "{}: the files have more than {} different extensions; a sample's name ends at its first "
      "dot",
      name, tar_extensions_max);
  auto number = static_cast<std::uint32_t>(names_.size());
  names_.push_back(name);
  numbers_.emplace(name, number);
  return number;
}

result<std::vector<tar_sample>> index_tar(
  const byte_source& from, tar_packing packing, std::uint64_t size_bytes, tar_totals& totals,
  const opening& how) {
  const archive_bound bound{size_bytes, packing == tar_packing::none};
  const tar_stream* opened = nullptr;
  // An entry that is passed over may have bytes without an end.
  auto stopping = [&](std::uint64_t offset, std::span<std::byte> into) -> result<std::size_t> {
    auto bad = how.go_on();
    if (bad.ok() && opened && !bound.is_plain)
      bad = bound.check(opened->position(), 0, "its last file");
    return bad.ok() ? from(offset, into) : fail(bad);
  };
  auto stream = tar_stream::open(stopping, packing);
  if (!stream)
    return fail(stream.error());
  opened = &*stream;
  indexing samples{*stream, bound, totals};
  for (;;) {
    auto entry = stream->next();
    if (!entry)
      return fail(entry.error());
    if (!*entry)
      return std::move(samples).take();
    if (auto bad = samples.add(**entry); !bad.ok())
      return fail(bad);
  }
}

} // namespace millrace::storage::samples
