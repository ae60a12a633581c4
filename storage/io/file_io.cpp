// System calls on files. Called by every kind that stores on a disk.
#include <millrace/core/rounding.hpp>
#include <millrace/storage/io/file_io.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <sstream>
#include <vector>

namespace millrace::storage::io {

memory_block heap_block(std::uint64_t size_bytes) {
  auto* data = std::aligned_alloc(direct_io_bytes, round_up(size_bytes, direct_io_bytes));
  if (!data)
    throw std::bad_alloc{};
  return {static_cast<std::byte*>(data), size_bytes, {data, &std::free}};
}

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

std::string who_locks(const file_handle& file) {
  struct stat info {};
  if (::fstat(file.get(), &info) != 0)
    return "another process";
  std::ifstream locks{"/proc/locks"};
  for (std::string line; std::getline(locks, line);) {
    std::istringstream words{line};
    std::string number, kind, advisory, access, place;
    long pid = -1;
    if (!(words >> number >> kind >> advisory >> access >> pid >> place) || pid <= 0)
      continue;
    auto inode = place.substr(place.rfind(':') + 1);
    if (kind != "FLOCK" || inode != std::to_string(info.st_ino))
      continue;
    std::string name;
    std::ifstream{fmt::format("/proc/{}/comm", pid)} >> name;
    return name.empty() ? fmt::format("process {}", pid)
                        : fmt::format("process {} ({})", pid, name);
  }
  return "another process";
}

status sync_directory(const std::string& path) {
  auto directory = open_file(path, O_RDONLY | O_DIRECTORY);
  if (!directory)
    return directory.error();
  if (::fsync(directory->get()) != 0)
    return status_from_errno(errno, "syncing directory " + path);
  return {};
}

namespace fs = std::filesystem;

status make_directories(const std::string& path) {
  std::error_code why;
  std::vector<fs::path> missing;
  auto at = fs::absolute(path, why);
  for (; !why && !fs::exists(at, why) && !why; at = at.parent_path())
    missing.push_back(at);
  // A process that was killed may have made it, and not come to sync its parent.
  if (!why)
    static_cast<void>(sync_directory(at.parent_path()));
  for (; !missing.empty() && !why; missing.pop_back()) {
    auto& next = missing.back();
    if (::mkdir(next.c_str(), 0777) != 0 && errno != EEXIST)
      return status_from_errno(errno, "creating directory " + path);
    auto synced = sync_directory(next.parent_path());
    // Where one may write and not read.
    if (!synced.ok() && synced.code() != errc::permission_denied)
      return synced;
  }
  if (!why && !fs::is_directory(path, why) && !why)
    why = std::make_error_code(std::errc::not_a_directory);
  return why ? status_from_errno(why.value(), "creating directory " + path) : status{};
}

namespace {

// Does the directory itself last: its permissions tell whether the rest was done. Leaves alone what
// is not ours, as the `lost+found` of a file system.
status take_from_others(const std::string& path) {
  std::error_code why;
  auto at =
    fs::recursive_directory_iterator{path, fs::directory_options::skip_permission_denied, why};
  for (; !why && at != fs::recursive_directory_iterator{}; at.increment(why)) {
    struct stat info {};
    if (::lstat(at->path().c_str(), &info) != 0 || info.st_uid != ::geteuid())
      at.disable_recursion_pending();
    else if (S_ISDIR(info.st_mode) || S_ISREG(info.st_mode))
      fs::permissions(at->path(), fs::perms{S_ISDIR(info.st_mode) ? 0700u : 0600u}, why);
  }
  if (!why)
    fs::permissions(path, fs::perms::owner_all, why);
  return why ? status_from_errno(why.value(), "taking " + path + " from other users") : status{};
}

} // namespace

status make_private_directory(const std::string& path) {
  auto parent = fs::absolute(path).lexically_normal().parent_path();
  if (auto bad = make_directories(parent); !bad.ok())
    return bad;
  if (::mkdir(path.c_str(), 0700) == 0)
    return {};
  if (errno != EEXIST)
    return status_from_errno(errno, "creating directory " + path);
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0)
    return status_from_errno(errno, "examining " + path);
  auto user = ::geteuid();
  if (info.st_uid != user)
    return {
      errc::permission_denied,
      "{} belongs to user {}, but this process runs as user {}: run it as that user, or change the "
      "owner with chown",
      path, info.st_uid, user};
  auto mode = info.st_mode & 07777u;
  if ((mode & 022u) != 0)
    return {
      errc::permission_denied,
      "other users may write to {} (mode {:04o}): make sure that nothing in it is theirs, then "
      "chmod 700 {}",
      path, mode, path};
  return (mode & 077u) == 0 ? status{} : take_from_others(path);
}

result<std::uint64_t> free_bytes(const std::string& path) {
  struct statvfs info {};
  if (::statvfs(path.c_str(), &info) != 0)
    return fail(status_from_errno(errno, "examining the file system of " + path));
  return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
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
  auto written = write_all(*file, page.get(), direct_io_bytes, 0, path);
  if (written.code() == errc::no_space)
    return true; // it got as far as asking for space
  return written.ok() && read_all(*file, page.get(), direct_io_bytes, 0, path).ok();
}

} // namespace millrace::storage::io
