// System calls on files. Called by every kind that stores on a disk.
#include <millrace/storage/io/file_io.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>

namespace millrace::storage::io {

file_handle::~file_handle() {
  if (fd_ >= 0)
    ::close(fd_);
}

result<file_handle> open_file(const std::string& path, int flags, unsigned mode) {
  int fd;
  do
    fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  while (fd < 0 && errno == EINTR);
  if (fd < 0)
    return fail(status_from_errno(errno, "opening " + path));
  return file_handle{fd};
}

namespace {

std::string place(const std::string& path, std::uint64_t offset, std::uint64_t size_bytes) {
  return fmt::format("{} at byte {}, {} bytes", path, offset, size_bytes);
}

} // namespace

status write_all(
  const file_handle& file, const void* data, std::uint64_t size_bytes, std::uint64_t offset,
  const std::string& path) {
  auto at = static_cast<const char*>(data);
  while (size_bytes > 0) {
    auto written = ::pwrite(file.get(), at, size_bytes, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR)
      continue;
    if (written <= 0)
      return status_from_errno(
        written < 0 ? errno : EIO, "writing " + place(path, offset, size_bytes));
    at += written, offset += written, size_bytes -= written;
  }
  return {};
}

status read_all(
  const file_handle& file, void* data, std::uint64_t size_bytes, std::uint64_t offset,
  const std::string& path) {
  auto at = static_cast<char*>(data);
  while (size_bytes > 0) {
    auto got = ::pread(file.get(), at, size_bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      return status_from_errno(errno, "reading " + place(path, offset, size_bytes));
    if (got == 0)
      return {errc::corrupt_data, "the file ends early: {}", place(path, offset, size_bytes)};
    at += got, offset += got, size_bytes -= got;
  }
  return {};
}

status sync_directory(const std::string& path) {
  auto directory = open_file(path, O_RDONLY | O_DIRECTORY);
  if (!directory)
    return directory.error();
  if (::fsync(directory->get()) != 0)
    return status_from_errno(errno, "syncing directory " + path);
  return {};
}

status make_directories(const std::string& path) {
  std::error_code why;
  std::filesystem::create_directories(path, why);
  return why ? status_from_errno(why.value(), "creating directory " + path) : status{};
}

bool supports_direct_io(const std::string& directory) {
  auto path = directory + "/probe";
  auto file = open_file(path, O_RDWR | O_CREAT | O_DIRECT);
  ::unlink(path.c_str());
  if (!file)
    return false;
  std::unique_ptr<void, decltype(&std::free)> page{
    std::aligned_alloc(direct_io_bytes, direct_io_bytes), &std::free};
  std::fill_n(static_cast<char*>(page.get()), direct_io_bytes, '\0');
  return write_all(*file, page.get(), direct_io_bytes, 0, path).ok() &&
    read_all(*file, page.get(), direct_io_bytes, 0, path).ok();
}

} // namespace millrace::storage::io
