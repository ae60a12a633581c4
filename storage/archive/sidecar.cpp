// Writes and checks sidecars. Called with the archives that they lie beside.
#include <millrace/core/checkpoint.hpp>
#include <millrace/core/digest.hpp>
#include <millrace/storage/archive/output_file.hpp>
#include <millrace/storage/archive/sidecar.hpp>
#include <millrace/storage/io/file_io.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>

namespace millrace::storage::archive {

namespace {

constexpr std::string_view extra_key = "millrace.extra";

std::string entry_of(std::span<const std::byte> extra) {
  return fmt::format("{} {:016x}", extra.size(), digest(extra.data(), extra.size()));
}

result<std::vector<std::byte>> read_sidecar(const std::string& path) {
  auto file = io::open_file(path, O_RDONLY | O_NONBLOCK);
  if (!file)
    return fail(file.error());
  struct stat about {};
  if (::fstat(file->get(), &about) != 0)
    return fail(status_from_errno(errno, "examining " + path));
  auto size_bytes = static_cast<std::uint64_t>(about.st_size);
  if (!S_ISREG(about.st_mode) || size_bytes > extra_bytes_max)
    return fail(errc::corrupt_data, "{} is not what a dump wrote", path);
  std::vector<std::byte> bytes(size_bytes);
  if (auto bad = io::read_all(*file, bytes.data(), bytes.size(), 0, path); !bad.ok())
    return fail(bad);
  return bytes;
}

} // namespace

std::string sidecar_of(const std::string& archive) { return archive + ".extra"; }

status write_sidecar(const std::string& archive, std::span<const std::byte> extra, bool replace) {
  auto target = output_file::create(sidecar_of(archive), replace);
  if (!target)
    return target.error();
  {
    auto file = io::open_file(target->path(), O_WRONLY);
    if (!file)
      return file.error();
    auto bad = io::write_all(*file, extra.data(), extra.size(), 0, target->path());
    if (!bad.ok())
      return bad;
  }
  return target->publish();
}

text_pairs with_extra(text_pairs metadata, std::span<const std::byte> extra) {
  std::erase_if(metadata, [](auto& entry) { return entry.first == extra_key; });
  metadata.emplace_back(extra_key, entry_of(extra));
  return metadata;
}

result<std::unique_ptr<tensor_source>> take_sidecar(
  const std::string& archive, std::unique_ptr<tensor_source> source) {
  auto metadata = source->metadata();
  auto entry = std::ranges::find_if(metadata, [](auto& pair) { return pair.first == extra_key; });
  if (entry == metadata.end())
    return source;
  auto path = sidecar_of(archive);
  auto extra = read_sidecar(path);
  if (!extra)
    return fail(extra.error().within("the user's bytes of " + archive));
  if (entry_of(*extra) != entry->second)
    return fail(
      errc::corrupt_data,
      "the user's bytes of {}: {} has other ones than the file was written with", archive, path);
  metadata.erase(entry);
  return std::make_unique<source_with_extra>(
    std::shared_ptr<tensor_source>{std::move(source)}, std::move(metadata), std::move(*extra));
}

} // namespace millrace::storage::archive
