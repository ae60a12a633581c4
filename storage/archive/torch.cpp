// PyTorch's zip format: a pickled state dictionary, one entry per storage, and a version.
#include <millrace/storage/archive/formats.hpp>
#include <millrace/storage/archive/state_dict.hpp>
#include <millrace/storage/archive/tensor_table.hpp>
#include <millrace/storage/archive/zip_output.hpp>
#include <millrace/storage/archive/zipped_tensors.hpp>

#include <unordered_map>
#include <unordered_set>

namespace millrace::storage::archive {

namespace {

// PyTorch ignores entries that it does not know.
constexpr std::string_view metadata_entry = "extra/millrace.json";
constexpr std::string_view pickle_entry = "data.pkl";
constexpr std::uint64_t alignment = 64;

/// The entries below the archive's own name, which its writer chose.
class torch_entries {
public:
  static result<torch_entries> of(const zip_input& file) {
    torch_entries found;
    for (auto& entry : file.entries())
      if (entry.name.ends_with("/" + std::string{pickle_entry})) {
        found.prefix_ = entry.name.substr(0, entry.name.size() - pickle_entry.size());
        break;
      }
    for (std::size_t i = 0; i < file.entries().size(); ++i)
      found.by_name_.emplace(file.entries()[i].name, i);
    if (found.prefix_.empty())
      return fail(errc::unsupported, "no data.pkl: not what torch.save writes");
    return found;
  }

  std::optional<std::size_t> find(std::string_view name) const {
    auto found = by_name_.find(prefix_ + std::string{name});
    return found == by_name_.end() ? std::nullopt : std::optional{found->second};
  }

private:
  std::string prefix_;
  std::unordered_map<std::string, std::size_t> by_name_;
};

result<bool> is_big_endian(zip_input& file, const torch_entries& entries) {
  auto at = entries.find("byteorder");
  if (!at)
    return false; // older versions were written on little-endian machines
  auto text = file.read_text(*at, 16);
  if (!text)
    return fail(text.error());
  if (*text != "little" && *text != "big")
    return fail(errc::corrupt_data, "the byte order is neither little nor big");
  return *text == "big";
}

result<text_pairs> read_metadata(zip_input& file, const torch_entries& entries) {
  auto at = entries.find(metadata_entry);
  if (!at)
    return text_pairs{};
  auto text = file.read_text(*at, tensor_table_bytes_max);
  if (!text)
    return fail(text.error());
  auto table = parse_tensor_table(*text);
  if (!table)
    return fail(table.error());
  return std::move(table->metadata);
}

result<state_dict> read_pickle(zip_input& file, const torch_entries& entries) {
  auto text = file.read_text(*entries.find(pickle_entry), pickle_bytes_max);
  return text ? read_state_dict(*text) : fail(text.error());
}

// Adds the plain values of the pickle to the metadata that `write_torch` put beside it.
status add_values(text_pairs& metadata, text_pairs values) {
  std::unordered_set<std::string> names;
  for (auto& [name, text] : metadata)
    names.insert(name);
  for (auto& [name, text] : values) {
    if (names.contains(name))
      return {errc::corrupt_data, "{} is in the pickle and in {}", name, metadata_entry};
    metadata.emplace_back(std::move(name), std::move(text));
  }
  return {};
}

result<zipped_tensor> place_of(
  const zip_input& file, const torch_entries& entries, state_entry& from, bool big_endian) {
  auto& name = from.tensor.name;
  auto at = entries.find("data/" + from.key);
  if (!at)
    return fail(errc::corrupt_data, "tensor {}: there is no storage {}", name, from.key);
  if (file.entries()[*at].size_bytes < from.storage_bytes)
    return fail(errc::corrupt_data, "tensor {}: its storage is cut", name);
  zipped_tensor place{
    .entry = *at,
    .steps = std::move(from.steps),
    .big_endian = big_endian,
    .conjugated = from.conjugated,
    .negated = from.negated};
  auto bytes = bits_per_element(from.tensor.type) / 8;
  if (__builtin_mul_overflow(from.offset, bytes, &place.offset))
    return fail(errc::corrupt_data, "tensor {}: it begins beyond its storage", name);
  return place;
}

} // namespace

status write_torch(const std::string& path, tensor_source& source, meter& done) {
  auto pickled = write_state_dict(source.tensors());
  if (!pickled)
    return pickled.error();
  auto zip = zip_output::create(path, source, done);
  if (!zip)
    return zip.error();
  auto add = [&](std::string_view name, std::string text) {
    return (*zip)->add_text("archive/" + std::string{name}, std::move(text), alignment);
  };
  if (auto bad = add(pickle_entry, std::move(*pickled)); !bad.ok())
    return bad;
  if (auto bad = add("byteorder", "little"); !bad.ok())
    return bad;
  for (std::uint32_t i = 0; i < source.tensors().tensors.size(); ++i)
    if (auto bad = (*zip)->add_tensor(fmt::format("archive/data/{}", i), "", i, alignment);
        !bad.ok())
      return bad;
  if (!source.metadata().empty())
    if (auto bad = add(metadata_entry, to_json({{}, {}, source.metadata()})); !bad.ok())
      return bad;
  if (auto bad = add("version", "3\n"); !bad.ok())
    return bad;
  return (*zip)->close();
}

result<std::unique_ptr<tensor_source>> open_torch(const std::string& path) {
  auto file = zip_input::open(path);
  if (!file)
    return fail(file.error());
  auto entries = torch_entries::of(*file);
  if (!entries)
    return fail(entries.error());
  auto big_endian = is_big_endian(*file, *entries);
  if (!big_endian)
    return fail(big_endian.error());
  auto metadata = read_metadata(*file, *entries);
  if (!metadata)
    return fail(metadata.error());
  auto state = read_pickle(*file, *entries);
  if (!state)
    return fail(state.error());
  if (auto bad = add_values(*metadata, std::move(state->values)); !bad.ok())
    return fail(bad);
  layout tensors;
  std::vector<zipped_tensor> places;
  for (auto& one : state->tensors) {
    auto place = place_of(*file, *entries, one, *big_endian);
    if (!place)
      return fail(place.error());
    places.push_back(std::move(*place));
    tensors.tensors.push_back(std::move(one.tensor));
  }
  return make_zipped_source(
    std::move(*file), std::move(tensors), std::move(places), std::move(*metadata));
}

} // namespace millrace::storage::archive
