// Looks at files with `fstat` on an open descriptor, so that a name which changes meanwhile counts
// once.
#include <millrace/core/digest.hpp>
#include <millrace/core/rounding.hpp>
#include <millrace/core/working_set.hpp>
#include <millrace/storage/samples/sample_file.hpp>

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>

namespace millrace::storage::samples {

namespace {

result<file_state> state_of(const io::file_handle& file, const std::string& path) {
  struct stat about {};
  if (::fstat(file.get(), &about) != 0)
    return fail(status_from_errno(errno, "examining " + path));
  if (!S_ISREG(about.st_mode))
    return fail(errc::invalid_argument, "{} is no regular file", path);
  return file_state{
    about.st_dev, about.st_ino, static_cast<std::uint64_t>(about.st_size), about.st_mtim.tv_sec,
    about.st_mtim.tv_nsec};
}

} // namespace

result<opened_file> open_to_read(const std::string& path) {
  auto file = io::open_file(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW);
  if (!file)
    return fail(file.error());
  auto state = state_of(*file, path);
  if (!state)
    return fail(state.error());
  return opened_file{std::move(*file), *state};
}

result<sample_file> find_file(const std::string& path) {
  std::error_code why;
  auto whole = std::filesystem::canonical(path, why).string();
  if (why)
    return fail(status_from_errno(why.value(), "looking for " + path));
  auto file = open_to_read(whole);
  if (!file)
    return fail(file.error());
  return sample_file{std::move(whole), file->state};
}

status check_unchanged(const sample_file& file, const io::file_handle& opened) {
  auto state = state_of(opened, file.path);
  if (!state)
    return state.error();
  if (*state != file.state)
    return {errc::corrupt_data, "{} has changed since it was opened; preload it again", file.path};
  return {};
}

status check_unchanged(const sample_file& file) {
  auto opened = open_to_read(file.path);
  return opened ? check_unchanged(file, opened->handle) : opened.error();
}

result<std::uint64_t> sample_after(
  const sample_file& file, std::uint64_t first, std::uint64_t samples) {
  std::uint64_t next = 0;
  if (__builtin_add_overflow(first, samples, &next) || next > INT64_MAX)
    return fail(
      errc::invalid_argument,
      "{}: its {} samples, after {} of other files, are more than 63 bits "
      "count",
      file.path, samples, first);
  return next;
}

status add_bytes(std::uint64_t& all, std::uint64_t size_bytes, const std::string& path) {
  if (
    size_bytes > INT64_MAX - sample_alignment ||
    __builtin_add_overflow(all, round_up(size_bytes, sample_alignment), &all) || all > INT64_MAX)
    return {
      errc::invalid_argument,
      "{}: its {} bytes, with those of the samples before it, are more than 63 bits count", path,
      size_bytes};
  return {};
}

std::uint64_t source_of(const std::vector<named_file>& files, const sample_options& options) {
  running_digest all;
  for (auto& file : files) {
    all.add_text(file.path);
    // Not the device: one file system has another number on each host.
    auto& state = file.state;
    for (std::uint64_t part :
         {state.inode, state.size_bytes, static_cast<std::uint64_t>(state.modified_s),
          static_cast<std::uint64_t>(state.modified_ns)})
      all.add(&part, sizeof(part));
  }
  all.add(&options.kind, sizeof(options.kind));
  for (auto& field : options.fields)
    all.add_text(field);
  all.add_text(options.labels);
  for (auto& one : options.decode)
    all.add_text(one);
  return all.value();
}

} // namespace millrace::storage::samples
