// Chooses the format. Has the parts that all formats share: checks before writing, and publishing
// the file.
#include <millrace/storage/archive/archive.hpp>
#include <millrace/storage/archive/formats.hpp>
#include <millrace/storage/archive/output_file.hpp>
#include <millrace/storage/archive/sidecar.hpp>
#include <millrace/storage/archive/strided.hpp>
#include <millrace/storage/archive/zip_input.hpp>
#include <millrace/storage/io/file_io.hpp>

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_set>

namespace millrace::storage::archive {

namespace {

constexpr std::array<std::string_view, 4> format_names = {"safetensors", "npz", "hdf5", "torch"};

struct name_ending {
  std::string_view text;
  archive_format format;
};
constexpr std::array<name_ending, 7> endings = {{
  {".safetensors", archive_format::safetensors},
  {".npz", archive_format::npz},
  {".h5", archive_format::hdf5},
  {".hdf5", archive_format::hdf5},
  {".pt", archive_format::torch},
  {".pth", archive_format::torch},
  {".ckpt", archive_format::torch},
}};

status check_source(const tensor_source& source) {
  if (auto bad = validate(source.tensors()); !bad.ok())
    return bad;
  std::unordered_set<std::string_view> keys;
  for (auto& [key, value] : source.metadata()) {
    if (key.empty() || !is_utf8(key) || !is_utf8(value))
      return {errc::invalid_argument, "metadata must be UTF-8, and its keys not empty"};
    if (!keys.insert(key).second)
      return {errc::invalid_argument, "the metadata has two values for {}", key};
  }
  return {};
}

status write_as(
  archive_format format, const std::string& path, tensor_source& source, meter& done) {
  switch (format) {
  case archive_format::safetensors:
    return archive::write_safetensors(path, source, done);
  case archive_format::npz:
    return archive::write_npz(path, source, done);
  case archive_format::hdf5:
    return archive::write_hdf5(path, source, done);
  case archive_format::torch:
    return archive::write_torch(path, source, done);
  }
  return {errc::invalid_argument, "no such format"};
}

result<archive_format> format_of_zip(const std::string& path) {
  auto zip = archive::zip_input::open(path);
  if (!zip)
    return fail(zip.error().within("opening " + path));
  bool pickled = std::any_of(zip->entries().begin(), zip->entries().end(), [](auto& entry) {
    return entry.name.ends_with("/data.pkl");
  });
  return pickled ? archive_format::torch : archive_format::npz;
}

} // namespace

status meter::add(std::uint64_t size_bytes) {
  done_ += size_bytes;
  if (report_ && !report_(done_, total_))
    return {errc::cancelled, "stopped on request"};
  return {};
}

status check_range(
  const layout& tensors, std::uint32_t tensor, std::uint64_t offset, std::uint64_t length) {
  if (tensor >= tensors.tensors.size())
    return {errc::invalid_argument, "there is no tensor {}", tensor};
  auto total = size_bytes(tensors.tensors[tensor]).value_or(0);
  if (offset > total || length > total - offset)
    return {errc::invalid_argument, "a range beyond tensor {}", tensors.tensors[tensor].name};
  if (auto element = element_bytes(tensors.tensors[tensor]);
      offset % element != 0 || length % element != 0)
    return {
      errc::invalid_argument, "a range that is not aligned to the {} bytes of an element", element};
  return {};
}

std::string_view to_string(archive_format format) noexcept {
  return format_names[static_cast<std::size_t>(format)];
}

result<archive_format> parse_format(std::string_view name) {
  auto found = std::find(format_names.begin(), format_names.end(), name);
  if (found == format_names.end())
    return fail(
      errc::invalid_argument, "no format is called {}; there are safetensors, npz, hdf5 and torch",
      name);
  return static_cast<archive_format>(found - format_names.begin());
}

std::optional<archive_format> format_of_name(std::string_view path) noexcept {
  for (auto& ending : endings)
    if (path.ends_with(ending.text))
      return ending.format;
  return std::nullopt;
}

result<archive_format> format_of_content(const std::string& path) {
  auto file = io::open_file(path, O_RDONLY | O_NONBLOCK);
  if (!file)
    return fail(file.error());
  struct stat about {};
  if (::fstat(file->get(), &about) != 0)
    return fail(status_from_errno(errno, "examining " + path));
  if (!S_ISREG(about.st_mode))
    return fail(errc::invalid_argument, "{} is not a regular file", path);
  std::array<char, 16> head{};
  auto known = std::min<std::uint64_t>(head.size(), static_cast<std::uint64_t>(about.st_size));
  if (auto bad = io::read_all(*file, head.data(), known, 0, path); !bad.ok())
    return fail(bad);
  if (std::memcmp(head.data(), "\x89HDF\r\n\x1a\n", 8) == 0)
    return archive_format::hdf5;
  if (std::memcmp(head.data(), "PK", 2) == 0)
    return format_of_zip(path);
  // The magic number that torch.save pickled first, before it wrote zip files.
  if (
    head[0] == '\x80' &&
    std::memcmp(
      &head[2],
      "\x8a\nl\xfc\x9c"
      "F\xf9 j\xa8P\x19",
      12) == 0)
    return fail(
      errc::unsupported,
      "{} is a torch file in the format from before PyTorch 1.6; convert it: "
      "torch.save(torch.load(OLD, weights_only=True), NEW)",
      path);
  if (head[8] == '{')
    return archive_format::safetensors;
  if (auto promised = format_of_name(path))
    return *promised;
  return fail(
    errc::invalid_argument,
    "{} does not begin like safetensors, npz, hdf5 or torch; name its format", path);
}

status write_archive(
  archive_format format, const std::string& path, tensor_source& source,
  const archive_options& options) {
  auto writing = "writing " + path;
  if (auto bad = check_source(source); !bad.ok())
    return bad.within(writing);
  auto file = output_file::create(path, options.replace);
  if (!file)
    return file.error();
  auto extra = source.extra();
  if (!extra)
    return extra.error().within(writing);
  meter done{options.progress, size_bytes(source.tensors())};
  if (extra->empty()) {
    if (auto bad = write_as(format, file->path(), source, done); !bad.ok())
      return bad.within(writing);
    return file->publish();
  }
  // A sidecar that is in the way is found before the tensors are written.
  if (auto place = output_file::create(sidecar_of(path), options.replace); !place)
    return place.error();
  source_with_extra labelled{
    {std::shared_ptr<void>{}, &source}, with_extra(source.metadata(), *extra), {}};
  if (auto bad = write_as(format, file->path(), labelled, done); !bad.ok())
    return bad.within(writing);
  if (auto bad = write_sidecar(path, *extra, options.replace); !bad.ok())
    return bad.within(writing);
  return file->publish();
}

result<std::unique_ptr<tensor_source>> open_archive(
  const std::string& path, std::optional<archive_format> format) {
  auto found = format_of_content(path);
  if (!found && (!format || found.error().code() != errc::invalid_argument))
    return fail(found.error());
  auto open = [&]() -> result<std::unique_ptr<tensor_source>> {
    switch (format.value_or(found.value_or(archive_format::safetensors))) {
    case archive_format::safetensors:
      return archive::open_safetensors(path);
    case archive_format::npz:
      return archive::open_npz(path);
    case archive_format::hdf5:
      return archive::open_hdf5(path);
    case archive_format::torch:
      return archive::open_torch(path);
    }
    return fail(errc::invalid_argument, "no such format");
  };
  auto opened = open();
  if (!opened)
    return fail(opened.error().within("opening " + path));
  if (auto bad = validate((*opened)->tensors()); !bad.ok())
    return fail(errc::corrupt_data, "opening {}: {}", path, bad.detail());
  return take_sidecar(path, std::move(*opened));
}

} // namespace millrace::storage::archive
