// The safetensors format: 8 bytes of length, a table in JSON, the bytes of all tensors without
// gaps.
#include <millrace/storage/archive/formats.hpp>
#include <millrace/storage/archive/safetensors.hpp>
#include <millrace/storage/io/file_io.hpp>

#include <fcntl.h>
#include <sys/stat.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <unordered_map>

namespace millrace::storage::archive {

static_assert(std::endian::native == std::endian::little);

namespace {

// Returns the order of the tensors in the file. Those with wide elements come first, so that every
// tensor is aligned to its elements, as readers that map the file need it. The table keeps the
// layout's order.
std::vector<std::uint32_t> resting_order(const layout& tensors) {
  std::vector<std::uint32_t> order(tensors.tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
    return bits_per_element(tensors.tensors[a].type) > bits_per_element(tensors.tensors[b].type);
  });
  return order;
}

// The format has no C128. Such a tensor is stored as F64 with one dimension more, for the two
// parts, and the metadata has its dtype under its name.
constexpr std::string_view dtype_key = "millrace.dtype.";

result<tensor_table> table_of(const tensor_source& source) {
  tensor_table table{source.tensors(), {}, source.metadata()};
  for (auto& [key, value] : table.metadata)
    if (key.starts_with(dtype_key))
      return fail(errc::unsupported, "metadata may not be called {} in safetensors", key);
  for (auto& tensor : table.tensors.tensors) {
    if (tensor.name == "__metadata__")
      return fail(
        errc::unsupported, "safetensors has no tensor called __metadata__; use another format");
    if (tensor.type != dtype::c128)
      continue;
    if (tensor.shape.size() == tensor_rank_max)
      return fail(
        errc::unsupported, "tensor {}: safetensors has no C128 of rank {}; use another format",
        tensor.name, tensor_rank_max);
    table.metadata.emplace_back(
      std::string{dtype_key} + tensor.name, std::string{to_string(tensor.type)});
    tensor.type = dtype::f64;
    tensor.shape.push_back(2);
  }
  return table;
}

// Restores the dtype and shape of the tensors whose dtype the format lacks.
status restore_types(tensor_table& table) {
  std::unordered_map<std::string_view, std::string_view> stored;
  for (auto& [key, value] : table.metadata)
    if (key.starts_with(dtype_key))
      stored.emplace(std::string_view{key}.substr(dtype_key.size()), value);
  for (auto& tensor : table.tensors.tensors) {
    auto found = stored.find(tensor.name);
    if (found == stored.end())
      continue;
    if (
      found->second != to_string(dtype::c128) || tensor.type != dtype::f64 ||
      tensor.shape.empty() || tensor.shape.back() != 2)
      return {
        errc::corrupt_data, "tensor {}, {}, cannot be of the dtype beside it, {}", tensor.name,
        describe(tensor), found->second.substr(0, 64)};
    tensor.type = dtype::c128;
    tensor.shape.pop_back();
    stored.erase(found);
  }
  if (!stored.empty())
    return {
      errc::corrupt_data, "there is no tensor for the metadata {}{}", dtype_key,
      stored.begin()->first.substr(0, 64)};
  std::erase_if(table.metadata, [](auto& one) { return one.first.starts_with(dtype_key); });
  return {};
}

class safetensors_source final : public tensor_source {
public:
  safetensors_source(std::string path, io::file_handle file, safetensors_header header)
    : path_(std::move(path)), file_(std::move(file)), header_(std::move(header)) {}

  const layout& tensors() const noexcept override { return header_.table.tensors; }
  const text_pairs& metadata() const noexcept override { return header_.table.metadata; }

  status read(std::uint32_t tensor, std::uint64_t offset, std::span<std::byte> into) override {
    if (auto bad = check_range(tensors(), tensor, offset, into.size()); !bad.ok())
      return bad;
    auto at = header_.data_offset + header_.table.places[tensor].begin + offset;
    return io::read_all(file_, into.data(), into.size(), at, path_);
  }

private:
  std::string path_;
  io::file_handle file_;
  safetensors_header header_;
};

} // namespace

status check_places(const tensor_table& table, std::uint64_t data_bytes) {
  std::vector<std::uint32_t> order(table.places.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
    return std::pair{table.places[a].begin, table.places[a].end} <
      std::pair{table.places[b].begin, table.places[b].end};
  });
  std::uint64_t at = 0;
  for (auto i : order) {
    auto& tensor = table.tensors.tensors[i];
    auto& place = table.places[i];
    if (place.begin != at || place.end < place.begin)
      return {
        errc::corrupt_data, "tensor {} does not lie where the one before it ends", tensor.name};
    if (place.end - place.begin != *size_bytes(tensor))
      return {
        errc::corrupt_data, "tensor {}, {}, has {} bytes", tensor.name, describe(tensor),
        place.end - place.begin};
    at = place.end;
  }
  if (at != data_bytes)
    return {errc::corrupt_data, "the tensors have {} bytes, the file has {}", at, data_bytes};
  return {};
}

result<safetensors_header> parse_safetensors(
  std::uint64_t file_bytes,
  const std::function<status(std::uint64_t, std::span<std::byte>)>& read) {
  std::array<std::byte, 8> head{};
  if (file_bytes < head.size())
    return fail(errc::corrupt_data, "shorter than the length that opens a safetensors file");
  if (auto bad = read(0, head); !bad.ok())
    return fail(bad);
  std::uint64_t length = 0;
  std::memcpy(&length, head.data(), head.size());
  if (length > tensor_table_bytes_max || length > file_bytes - head.size())
    return fail(errc::corrupt_data, "a table of {} bytes in a file of {}", length, file_bytes);
  std::string text(length, '\0');
  if (auto bad = read(head.size(), std::as_writable_bytes(std::span{text})); !bad.ok())
    return fail(bad);
  if (text.empty() || text.front() != '{')
    return fail(errc::corrupt_data, "the table of tensors does not begin with {");
  auto table = parse_tensor_table(text);
  if (!table)
    return fail(table.error());
  if (auto bad = check_places(*table, file_bytes - head.size() - length); !bad.ok())
    return fail(bad);
  if (auto bad = restore_types(*table); !bad.ok())
    return fail(bad);
  return safetensors_header{std::move(*table), head.size() + length};
}

status write_safetensors(const std::string& path, tensor_source& source, meter& done) {
  auto made = table_of(source);
  if (!made)
    return made.error();
  auto& table = *made;
  table.places.resize(table.tensors.tensors.size());
  auto order = resting_order(table.tensors);
  std::uint64_t end = 0;
  for (auto i : order) {
    table.places[i] = {end, end + *size_bytes(table.tensors.tensors[i])};
    end = table.places[i].end;
  }
  auto text = to_json(table);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > tensor_table_bytes_max)
    return {errc::unsupported, "more than 100 MB of names and metadata; use another format"};
  auto file = io::open_file(path, O_WRONLY);
  if (!file)
    return file.error();
  std::uint64_t length = text.size();
  auto data_offset = 8 + length;
  // Reserves the space now: a full device is reported at once, and not after half an hour.
  if (::fallocate(file->get(), 0, 0, static_cast<off_t>(data_offset + end)) != 0 && errno == ENOSPC)
    return {errc::no_space, "no room for {} bytes", data_offset + end};
  if (auto bad = io::write_all(*file, &length, 8, 0, path); !bad.ok())
    return bad;
  if (auto bad = io::write_all(*file, text.data(), length, 8, path); !bad.ok())
    return bad;
  std::vector<std::byte> buffer;
  for (auto i : order) {
    auto wrote = for_each_step(source, i, buffer, [&](std::uint64_t offset, auto bytes) {
      auto at = data_offset + table.places[i].begin + offset;
      auto bad = io::write_all(*file, bytes.data(), bytes.size(), at, path);
      return bad.ok() ? done.add(bytes.size()) : bad;
    });
    if (!wrote.ok())
      return wrote;
  }
  return {};
}

result<std::unique_ptr<tensor_source>> open_safetensors(const std::string& path) {
  auto file = io::open_file(path, O_RDONLY);
  if (!file)
    return fail(file.error());
  struct stat about {};
  if (::fstat(file->get(), &about) != 0)
    return fail(status_from_errno(errno, "examining " + path));
  auto header = parse_safetensors(
    static_cast<std::uint64_t>(about.st_size),
    [&](std::uint64_t offset, std::span<std::byte> into) {
      return io::read_all(*file, into.data(), into.size(), offset, path);
    });
  if (!header)
    return fail(header.error());
  return std::make_unique<safetensors_source>(path, std::move(*file), std::move(*header));
}

} // namespace millrace::storage::archive
