// Reads through libzip, and checks what the file claims.
#include <millrace/core/tensor.hpp>
#include <millrace/storage/archive/zip_error.hpp>
#include <millrace/storage/archive/zip_input.hpp>

#include <zip.h>

#include <algorithm>
#include <filesystem>
#include <unordered_set>

namespace millrace::storage::archive {

namespace {

// One entry per tensor, and a few beside them.
constexpr std::int64_t entries_max = static_cast<std::int64_t>(layout_tensors_max) + 64;

// Deflate expands two bits to 258 bytes at best.
constexpr std::uint64_t deflate_ratio_max = 1032;

status check_entry(const zip_stat_t& about, std::uint64_t file_bytes) {
  constexpr auto needed = ZIP_STAT_NAME | ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE |
    ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
  if ((about.valid & needed) != needed)
    return {errc::corrupt_data, "an entry without name, size or method"};
  std::string name{about.name};
  if (about.encryption_method != ZIP_EM_NONE)
    return {errc::unsupported, "the entry {} is encrypted", name};
  bool stored = about.comp_method == ZIP_CM_STORE;
  if (!stored && about.comp_method != ZIP_CM_DEFLATE)
    return {
      errc::unsupported, "the entry {} is compressed by method {}; store it or use deflate", name,
      about.comp_method};
  if (
    about.comp_size > file_bytes ||
    (stored ? about.size != about.comp_size : about.size / deflate_ratio_max > about.comp_size))
    return {
      errc::corrupt_data, "the entry {} promises {} bytes and has {}", name, about.size,
      about.comp_size};
  return {};
}

} // namespace

void zip_input::closer::operator()(zip* file) const noexcept { zip_discard(file); }
void zip_input::closer::operator()(zip_file* entry) const noexcept { zip_fclose(entry); }

result<zip_input> zip_input::open(const std::string& path) {
  int code = 0;
  auto* file = zip_open(path.c_str(), ZIP_RDONLY, &code);
  if (!file) {
    zip_error_t error;
    zip_error_init_with_code(&error, code);
    auto why = status_of(error, "opening a zip file");
    zip_error_fini(&error);
    return fail(why);
  }
  zip_input opened{file};
  std::error_code why;
  auto file_bytes = std::filesystem::file_size(path, why);
  if (why)
    return fail(status_from_errno(why.value(), "examining a zip file"));
  if (auto bad = opened.list(file_bytes); !bad.ok())
    return fail(bad);
  return opened;
}

status zip_input::list(std::uint64_t file_bytes) {
  auto count = zip_get_num_entries(file_.get(), 0);
  if (count < 0 || count > entries_max)
    return {errc::corrupt_data, "a zip file of {} entries", count};
  std::unordered_set<std::string> names;
  for (zip_uint64_t i = 0; i < static_cast<zip_uint64_t>(count); ++i) {
    zip_stat_t about;
    zip_stat_init(&about);
    if (zip_stat_index(file_.get(), i, ZIP_FL_ENC_GUESS, &about) != 0)
      return status_of(*zip_get_error(file_.get()), "examining an entry of a zip file");
    if (auto bad = check_entry(about, file_bytes); !bad.ok())
      return bad;
    if (!names.insert(about.name).second)
      return {
        errc::corrupt_data,
        "two entries are called {}, and the format does not say which of them counts", about.name};
    entries_.push_back({about.name, about.size, about.comp_size});
  }
  return {};
}

status zip_input::move_to(std::size_t entry, std::uint64_t offset) {
  if (opened_ && opened_index_ == entry && position_ == offset)
    return {};
  auto reading = "reading " + entries_[entry].name;
  if (!opened_ || opened_index_ != entry || offset < position_) {
    opened_.reset(zip_fopen_index(file_.get(), entry, 0));
    if (!opened_)
      return status_of(*zip_get_error(file_.get()), reading);
    opened_index_ = entry;
    position_ = 0;
  }
  // After a seek libzip no longer compares the checksum, so what is near is read.
  constexpr std::uint64_t near_bytes = 1u << 16;
  if (
    offset - position_ > near_bytes && entries_[entry].size_bytes == entries_[entry].stored_bytes &&
    offset <= INT64_MAX &&
    zip_fseek(opened_.get(), static_cast<zip_int64_t>(offset), SEEK_SET) == 0) {
    position_ = offset;
    return {};
  }
  std::vector<std::byte> skipped(std::min(offset - position_, near_bytes));
  while (position_ < offset) {
    auto step = std::min<std::uint64_t>(skipped.size(), offset - position_);
    if (auto bad = read_on({skipped.data(), step}); !bad.ok())
      return bad;
  }
  return {};
}

status zip_input::read_on(std::span<std::byte> into) {
  while (!into.empty()) {
    auto got = zip_fread(opened_.get(), into.data(), into.size());
    auto reading = "reading " + entries_[opened_index_].name;
    if (got < 0) {
      auto why = status_of(*zip_file_get_error(opened_.get()), reading);
      opened_.reset();
      return why;
    }
    if (got == 0)
      return {errc::corrupt_data, "{}: it ends early", reading};
    position_ += static_cast<std::uint64_t>(got);
    into = into.subspan(static_cast<std::size_t>(got));
  }
  return {};
}

status zip_input::read(std::size_t entry, std::uint64_t offset, std::span<std::byte> into) {
  auto& about = entries_[entry];
  if (offset > about.size_bytes || into.size() > about.size_bytes - offset)
    return {errc::corrupt_data, "the entry {} ends before its tensor does", about.name};
  // libzip's zip_fseek ends the process in an entry of 0 bytes.
  if (into.empty())
    return {};
  if (auto bad = move_to(entry, offset); !bad.ok())
    return bad;
  if (auto bad = read_on(into); !bad.ok())
    return bad;
  // libzip compares the checksum only when a byte after the last one is read.
  if (position_ == about.size_bytes) {
    std::byte none;
    if (zip_fread(opened_.get(), &none, 1) < 0)
      return status_of(*zip_file_get_error(opened_.get()), "reading " + about.name);
  }
  return {};
}

result<std::string> zip_input::read_text(std::size_t entry, std::uint64_t bytes_max) {
  auto& about = entries_[entry];
  if (about.size_bytes > bytes_max)
    return fail(
      errc::corrupt_data, "the entry {} has {} bytes; at most {} are read", about.name,
      about.size_bytes, bytes_max);
  std::string text(about.size_bytes, '\0');
  if (auto bad = read(entry, 0, std::as_writable_bytes(std::span{text})); !bad.ok())
    return fail(bad);
  return text;
}

} // namespace millrace::storage::archive
