// Creates, syncs and renames a file, and syncs its directory, so that it appears whole. Locks tell
// what is being written from what was left.
#include <millrace/core/kill_point.hpp>
#include <millrace/core/planted_defect.hpp>
#include <millrace/storage/archive/output_file.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>

namespace millrace::storage::archive {

namespace fs = std::filesystem;

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

enum class lock_outcome { locked, taken, no_locks };

lock_outcome lock(const io::file_handle& directory) {
  if (::flock(directory.get(), LOCK_EX | LOCK_NB) == 0)
    return lock_outcome::locked;
  return errno == EWOULDBLOCK ? lock_outcome::taken : lock_outcome::no_locks;
}

result<io::file_handle> open_directory(const std::string& path) {
  return io::open_file(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
}

bool is_at(const io::file_handle& directory, const std::string& path) {
  struct stat opened {
  }, there{};
  return ::fstat(directory.get(), &opened) == 0 && ::lstat(path.c_str(), &there) == 0 &&
    opened.st_dev == there.st_dev && opened.st_ino == there.st_ino;
}

void remove_tree(const std::string& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

} // namespace

std::string directory_of(const std::string& path) {
  auto parent = fs::path{path}.parent_path().string();
  return parent.empty() ? "." : parent;
}

void remove_unfinished(const std::string& directory) {
  std::error_code why;
  for (fs::directory_iterator at{directory, why}, end; !why && at != end; at.increment(why)) {
    if (!at->path().filename().string().starts_with(output_file_prefix))
      continue;
    auto unfinished = open_directory(at->path());
    // Meanwhile its owner may have removed it, and another one may have made it anew.
    if (unfinished && lock(*unfinished) == lock_outcome::locked && is_at(*unfinished, at->path()))
      remove_tree(at->path());
  }
}

result<output_file> output_file::create(const std::string& target, bool replace) {
  static std::atomic<std::uint64_t> count{0};
  auto parent = directory_of(target);
  if (auto bad = check_target(target, replace); !bad.ok())
    return fail(bad);
  remove_unfinished(parent);
  for (int attempt = 0; attempt < 100; ++attempt) {
    auto path = fmt::format("{}/{}{}-{}", parent, output_file_prefix, ::getpid(), ++count);
    if (::mkdir(path.c_str(), 0700) != 0) {
      if (errno == ENOENT)
        return fail(errc::not_found, "writing {}: there is no directory {}", target, parent);
      if (errno == EEXIST)
        continue;
      return fail(status_from_errno(errno, "writing " + target));
    }
    // Until it is locked, another process may take the directory for one that was left.
    auto directory = open_directory(path);
    if (!directory && directory.error().code() != errc::not_found) {
      ::rmdir(path.c_str());
      return fail(directory.error().within("writing " + target));
    }
    if (!directory || lock(*directory) == lock_outcome::taken)
      continue;
    output_file made{target, std::move(path), std::move(*directory), replace};
    auto file = io::open_file(made.path(), O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (file)
      return made;
    if (file.error().code() != errc::not_found)
      return fail(file.error().within("writing " + target));
  }
  return fail(errc::busy, "writing {}: other processes remove what it writes to", target);
}

output_file::output_file(output_file&& other) noexcept
  : target_(std::move(other.target_)), directory_(std::exchange(other.directory_, {})),
    lock_(std::move(other.lock_)), replace_(other.replace_) {}

output_file::~output_file() {
  if (!directory_.empty())
    remove_tree(directory_);
}

status output_file::publish() {
  auto file = io::open_file(path(), O_RDONLY);
  if (!file)
    return file.error();
  if (!is_planted(defect::output_not_synced) && ::fsync(file->get()) != 0)
    return status_from_errno(errno, "syncing what becomes " + target_);
  MILLRACE_KILL_POINT("archive.synced");
  if (!replace_) {
    if (auto bad = rename_new(path(), target_); !bad.ok())
      return bad;
  } else if (::rename(path().c_str(), target_.c_str()) != 0) {
    return status_from_errno(errno, "renaming to " + target_);
  }
  MILLRACE_KILL_POINT("archive.renamed");
  remove_tree(std::exchange(directory_, {}));
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
