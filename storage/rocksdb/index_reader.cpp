// Checks the directory before it changes anything; then opens the lock, the index and the segments.
#include <millrace/core/log.hpp>
#include <millrace/storage/rocksdb/index_reader.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <filesystem>

namespace millrace::storage::rocksdb {

namespace {

namespace fs = std::filesystem;

status foreign(const std::string& path, const std::string& what) {
  return {
    errc::invalid_argument, "{} holds other things ({}); name an empty directory for the bucket",
    path, what};
}

// RocksDB writes CURRENT last: before that its directory has only these.
bool begins_database(const std::string& file) {
  return file == "LOCK" || file == "IDENTITY" || file.starts_with("LOG") ||
    file.starts_with("MANIFEST-") || file.ends_with(".dbtmp") || file.ends_with(".log");
}

// Accepts a directory without an index only if it holds nothing but the beginnings of one.
status check_beginnings(const std::string& path) {
  std::error_code why;
  for (auto& entry : fs::directory_iterator{path, why}) {
    auto name = entry.path().filename().string();
    if (name != "bucket.lock" && name != "segments" && name != "index" && name != "lost+found")
      return foreign(path, name);
  }
  if (why)
    return status_from_errno(why.value(), "listing " + path);
  for (auto& entry : fs::directory_iterator{path + "/index", why})
    if (auto name = entry.path().filename().string(); !begins_database(name))
      return foreign(path, "index/" + name);
  return {};
}

bool has_index(const std::string& path) {
  std::error_code why;
  return fs::exists(path + "/index/CURRENT", why);
}

status check_directory(const std::string& path) {
  std::error_code why;
  if (fs::exists(path, why) && !fs::is_directory(path, why))
    return {errc::invalid_argument, "{} is not a directory; name one for the bucket", path};
  if (auto bad = io::make_directories(path); !bad.ok())
    return bad;
  return has_index(path) ? status{} : check_beginnings(path);
}

// The kernel drops the lock with the process, however it ends.
result<io::file_handle> lock_directory(const std::string& path) {
  auto file = io::open_file(path + "/bucket.lock", O_RDWR | O_CREAT);
  if (!file)
    return fail(
      file.error().code(), file.error().detail() + "; the bucket's directory must be writable");
  if (::flock(file->get(), LOCK_EX | LOCK_NB) == 0)
    return file;
  if (errno == EWOULDBLOCK)
    return fail(errc::busy, "{} is open in a live process; stop it first", path);
  return fail(status_from_errno(errno, "locking " + path));
}

bool has_segments(const std::string& path) {
  std::error_code why;
  for (auto& entry : fs::directory_iterator{path + "/segments", why})
    if (entry.path().extension() == ".seg" && entry.file_size(why) > 0)
      return true;
  return false;
}

result<std::unique_ptr<index>> open_index(const std::string& path) {
  auto directory = path + "/index";
  auto fresh = !has_index(path);
  if (fresh && has_segments(path))
    return fail(
      errc::corrupt_data, "{} has segments but no index; restore {} or empty the directory", path,
      directory);
  auto db = index::open(directory, fresh);
  if (!db)
    return db;
  if (auto bad = check_format(**db, path); !bad.ok())
    return fail(std::move(bad));
  return db;
}

result<std::uint64_t> disk_free_bytes(const std::string& path) {
  struct statvfs info {};
  if (::statvfs(path.c_str(), &info) != 0)
    return fail(status_from_errno(errno, "examining the file system of " + path));
  return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
}

// A bucket without a configured capacity may fill the file system. Its capacity includes the space
// that its segments take already.
status settle_capacity(rocksdb_bucket_options& options) {
  if (options.capacity_bytes != 0)
    return {};
  auto free = disk_free_bytes(options.path);
  if (!free)
    return free.error();
  options.capacity_bytes = *free;
  std::error_code why;
  for (auto& entry : fs::directory_iterator{options.path + "/segments", why})
    options.capacity_bytes += entry.file_size(why);
  return {};
}

} // namespace

result<bucket_files> open_bucket_files(rocksdb_bucket_options& options) {
  auto& path = options.path;
  if (auto bad = check_directory(path); !bad.ok())
    return fail(std::move(bad));
  auto lock = lock_directory(path);
  if (!lock)
    return fail(lock.error());
  auto db = open_index(path);
  if (!db)
    return fail(db.error());
  auto segments = path + "/segments";
  if (auto bad = io::make_directories(segments); !bad.ok())
    return fail(std::move(bad));
  if (auto bad = io::sync_directory(path); !bad.ok())
    return fail(std::move(bad));
  // The directory itself may be new, too. Its parent may be one that this process cannot open.
  static_cast<void>(io::sync_directory(fs::absolute(path).parent_path()));
  if (auto bad = settle_capacity(options); !bad.ok())
    return fail(std::move(bad));
  if (options.direct_io && !io::supports_direct_io(segments)) {
    log().info(
      "this file system knows no direct I/O, writing through the page cache path={}", path);
    options.direct_io = false;
  }
  auto space = segment_store::open(
    {segments, options.capacity_bytes, options.segment_bytes, options.direct_io,
     options.staging->contiguous()});
  if (!space)
    return fail(space.error());
  return bucket_files{std::move(*lock), std::move(*db), std::move(*space)};
}

} // namespace millrace::storage::rocksdb
