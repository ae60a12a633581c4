// NumPy's archive: a zip file with one array per entry, and a table of what NumPy cannot express.
#include <millrace/storage/archive/formats.hpp>
#include <millrace/storage/archive/npy.hpp>
#include <millrace/storage/archive/tensor_table.hpp>
#include <millrace/storage/archive/zip_output.hpp>
#include <millrace/storage/archive/zipped_tensors.hpp>

#include <unordered_map>

namespace millrace::storage::archive {

namespace {

// A table as in safetensors, without places: the metadata, and the tensors whose dtype NumPy lacks.
constexpr auto table_entry = "__metadata__.json";
constexpr std::string_view array_ending = ".npy";

result<tensor_table> read_table(zip_input& file) {
  for (std::size_t i = 0; i < file.entries().size(); ++i)
    if (file.entries()[i].name == table_entry) {
      auto text = file.read_text(i, tensor_table_bytes_max);
      return text ? parse_tensor_table(*text) : fail(text.error());
    }
  return tensor_table{};
}

result<npy_header> read_header(zip_input& file, std::size_t entry) {
  auto known = std::min(file.entries()[entry].size_bytes, npy_header_bytes_max);
  std::string text(known, '\0');
  if (auto bad = file.read(entry, 0, std::as_writable_bytes(std::span{text})); !bad.ok())
    return fail(bad);
  auto header = parse_npy_header(text);
  if (!header)
    return fail(header.error().within(file.entries()[entry].name));
  return header;
}

// Restores the dtype and shape of a tensor whose dtype NumPy lacks.
status restore_type(tensor_desc& tensor, const tensor_desc& original) {
  auto shape = original.shape;
  if (bits_per_element(original.type) < 8)
    shape = {size_bytes(original).value_or(0)};
  if (tensor.type != numpy_type(original.type) || tensor.shape != shape)
    return {
      errc::corrupt_data, "the array {}, {}, cannot be the tensor {}", tensor.name,
      describe(tensor), describe(original)};
  tensor = original;
  return {};
}

} // namespace

status write_npz(const std::string& path, tensor_source& source, meter& done) {
  auto zip = zip_output::create(path, source, done);
  if (!zip)
    return zip.error();
  tensor_table table;
  table.metadata = source.metadata();
  auto& tensors = source.tensors().tensors;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    if (numpy_type(tensors[i].type) != tensors[i].type)
      table.tensors.tensors.push_back(tensors[i]);
    // Aligned, so that the elements can be mapped.
    auto bad = (*zip)->add_tensor(
      tensors[i].name + std::string{array_ending}, write_npy_header(tensors[i]), i, 64);
    if (!bad.ok())
      return bad;
  }
  table.places.resize(table.tensors.tensors.size());
  // libzip makes no file without entries.
  if (tensors.empty() || !table.metadata.empty() || !table.tensors.tensors.empty())
    if (auto bad = (*zip)->add_text(table_entry, to_json(table)); !bad.ok())
      return bad;
  return (*zip)->close();
}

result<std::unique_ptr<tensor_source>> open_npz(
  const std::string& path, const tensor_filter& wanted) {
  auto file = zip_input::open(path);
  if (!file)
    return fail(file.error());
  auto table = read_table(*file);
  if (!table)
    return fail(table.error());
  std::unordered_map<std::string_view, const tensor_desc*> originals;
  for (auto& tensor : table->tensors.tensors)
    originals[tensor.name] = &tensor;
  layout tensors;
  std::vector<zipped_tensor> places;
  for (std::size_t i = 0; i < file->entries().size(); ++i) {
    auto& name = file->entries()[i].name;
    auto is_array = name.ends_with(array_ending);
    auto array =
      std::string_view{name}.substr(0, name.size() - (is_array ? array_ending.size() : 0));
    if (name == table_entry || (wanted && !(is_array && wanted(array))))
      continue;
    if (!is_array)
      return fail(errc::unsupported, "the entry {} is no array", name);
    auto header = read_header(*file, i);
    if (!header)
      return fail(header.error());
    auto tensor = header->tensor;
    tensor.name = array;
    if (auto bad = validate(tensor); !bad.ok())
      return fail(errc::corrupt_data, bad.detail());
    if (auto found = originals.find(tensor.name); found != originals.end())
      if (auto bad = restore_type(tensor, *found->second); !bad.ok())
        return fail(bad);
    zipped_tensor place{
      .entry = i, .offset = header->data_offset, .big_endian = header->big_endian};
    if (header->fortran_order && bits_per_element(tensor.type) >= 8)
      place.steps = fortran_order(tensor.shape);
    tensors.tensors.push_back(std::move(tensor));
    places.push_back(std::move(place));
  }
  return make_zipped_source(
    std::move(*file), std::move(tensors), std::move(places), std::move(table->metadata));
}

} // namespace millrace::storage::archive
