// Creates, syncs and renames a file, and syncs its directory, so that it appears whole.
#include <millrace/core/kill_point.hpp>
#include <millrace/storage/archive/output_file.hpp>
#include <millrace/storage/io/file_io.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>

namespace millrace::storage::archive {

namespace {

status exists_already(const std::string& target) {
  return {errc::already_exists, "{} exists; ask to replace it or name another file", target};
}

status check_target(const std::string& target, bool replace) {
  struct stat about {};
  if (::lstat(target.c_str(), &about) != 0)
    return errno == ENOENT ? status{} : status_from_errno(errno, "examining " + target);
  if (!S_ISREG(about.st_mode))
    return {errc::invalid_argument, "{} exists and is no regular file", target};
  return replace ? status{} : exists_already(target);
}

// A hard link serves where the file system cannot rename without replacing.
status rename_new(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0)
    return {};
  if (errno == EINVAL || errno == ENOSYS) {
    if (::link(from.c_str(), to.c_str()) == 0) {
      ::unlink(from.c_str());
      return {};
    }
  }
  return errno == EEXIST ? exists_already(to) : status_from_errno(errno, "renaming to " + to);
}

} // namespace

std::string directory_of(const std::string& path) {
  auto parent = std::filesystem::path{path}.parent_path().string();
  return parent.empty() ? "." : parent;
}

result<output_file> output_file::create(const std::string& target, bool replace) {
  static std::atomic<std::uint64_t> count{0};
  if (auto bad = check_target(target, replace); !bad.ok())
    return fail(bad);
  for (int attempt = 0; attempt < 100; ++attempt) {
    auto path =
      fmt::format("{}/{}{}-{}", directory_of(target), output_file_prefix, ::getpid(), ++count);
    auto made = io::open_file(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (made)
      return output_file{target, std::move(path), replace};
    if (made.error().code() == errc::not_found)
      return fail(
        errc::not_found, "writing {}: there is no directory {}", target, directory_of(target));
    if (made.error().code() != errc::already_exists)
      return fail(made.error().within("writing " + target));
  }
  return fail(errc::already_exists, "writing {}: too many unfinished files beside it", target);
}

output_file::output_file(output_file&& other) noexcept
  : target_(std::move(other.target_)), path_(std::exchange(other.path_, {})),
    replace_(other.replace_) {}

output_file::~output_file() {
  if (!path_.empty())
    ::unlink(path_.c_str());
}

status output_file::publish() {
  auto file = io::open_file(path_, O_RDONLY);
  if (!file)
    return file.error();
  if (::fsync(file->get()) != 0)
    return status_from_errno(errno, "syncing what becomes " + target_);
  MILLRACE_KILL_POINT("archive.synced");
  if (!replace_) {
    if (auto bad = rename_new(path_, target_); !bad.ok())
      return bad;
  } else if (::rename(path_.c_str(), target_.c_str()) != 0) {
    return status_from_errno(errno, "renaming to " + target_);
  }
  path_.clear();
  MILLRACE_KILL_POINT("archive.renamed");
  return io::sync_directory(directory_of(target_));
}

status write_whole_file(const std::string& target, std::string_view text) {
  auto file = output_file::create(target, true);
  if (!file)
    return file.error();
  {
    auto handle = io::open_file(file->path(), O_WRONLY);
    if (!handle)
      return handle.error();
    if (auto bad = io::write_all(*handle, text.data(), text.size(), 0, target); !bad.ok())
      return bad;
  }
  return file->publish();
}

} // namespace millrace::storage::archive
