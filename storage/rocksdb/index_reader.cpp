// Checks the directory before it changes anything; then opens the lock, the index and the segments.
#include <millrace/core/log.hpp>
#include <millrace/storage/rocksdb/index_reader.hpp>
#include <millrace/storage/rocksdb/stop_mark.hpp>

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <limits>

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
    if (
      name != "bucket.lock" && name != "segments" && name != "index" && name != "reserve" &&
      name != "stopped" && name != "lost+found")
      return foreign(path, name);
  }
  if (why)
    return status_from_errno(why.value(), "listing " + path);
  for (auto& entry : fs::directory_iterator{path + "/index", why}) {
    auto name = entry.path().filename().string();
    if (begins_database(name))
      continue;
    // RocksDB makes these after CURRENT.
    if (name.starts_with("OPTIONS-") || name.ends_with(".sst"))
      return {
        errc::corrupt_data, "{}/index has lost its file CURRENT; restore {} from a copy", path,
        path};
    return foreign(path, "index/" + name);
  }
  return {};
}

bool has_index(const std::string& path) {
  std::error_code why;
  return fs::exists(path + "/index/CURRENT", why);
}

bool has_files(const std::string& directory, const std::string& extension) {
  std::error_code why;
  for (auto& entry : fs::directory_iterator{directory, why})
    if (entry.path().extension() == extension && entry.file_size(why) > 0)
      return true;
  return false;
}

} // namespace

bool has_held_models(const std::string& path) {
  std::error_code why;
  return has_files(path + "/segments", ".seg") || fs::exists(stop_mark_path(path), why);
}

status check_no_index(const std::string& path) {
  std::error_code why;
  if (!fs::exists(path, why))
    return {};
  if (!fs::is_directory(path, why))
    return {errc::invalid_argument, "{} is not a directory; name one for the bucket", path};
  if (auto bad = check_beginnings(path); !bad.ok())
    return bad;
  return has_held_models(path)
    ? status{
        errc::corrupt_data,
        "{0} has held models but has no index; restore {0}/index from a copy. The models in "
        "{0}/segments are still there, and cannot be found without it: only empty {0} if you can "
        "do without them",
        path}
    : status{};
}

namespace {

status check_directory(const std::string& path, bool may_make) {
  if (!has_index(path)) {
    if (auto bad = check_no_index(path); !bad.ok())
      return bad;
    if (!may_make)
      return {
        errc::not_found,
        "{} holds no RocksDB bucket, and 'create' is false: is its file system mounted?", path};
  }
  for (auto& directory : {path, path + "/index", path + "/segments"})
    if (auto bad = io::make_private_directory(directory); !bad.ok())
      return bad;
  return {};
}

} // namespace

// The kernel drops the lock with the process, however it ends.
status lock(const io::file_handle& file, int how, const std::string& path) {
  if (::flock(file.get(), how | LOCK_NB) == 0)
    return {};
  if (errno == EWOULDBLOCK)
    return {
      errc::busy, "{}: {} has it open; stop that process, or use its service", path,
      io::who_locks(file)};
  return status_from_errno(errno, "locking " + path);
}

result<io::file_handle> lock_directory(const std::string& path) {
  auto file = io::open_file(path + "/bucket.lock", O_RDWR | O_CREAT);
  if (!file)
    return fail(
      file.error().code(), file.error().detail() + "; the bucket's directory must be writable");
  if (auto bad = lock(*file, LOCK_EX, path); !bad.ok())
    return fail(std::move(bad));
  return file;
}

status with_remedy(status why, const std::string& path) {
  std::error_code ignored;
  auto damaged = why.code() == errc::corrupt_data || why.code() == errc::io_error;
  if (!damaged || fs::is_empty(path + "/index", ignored) || ignored)
    return why;
  return {
    why.code(), "{}; `millrace models salvage {} DIRECTORY` saves what is whole to files",
    why.detail(), path};
}

result<std::unique_ptr<index>> open_index_to_read(const std::string& path) {
  auto stopped_at = read_stop_mark(path);
  if (!stopped_at)
    return fail(stopped_at.error());
  auto db = index::open_to_read(path + "/index");
  if (!db)
    return db;
  auto found = (*db)->last_change();
  auto expected = stopped_at->value_or(0);
  // An index has a change before there is any file of models. RocksDB would delete the tables.
  if (found == 0 && (has_files(path + "/index", ".sst") || has_files(path + "/segments", ".seg")))
    expected = std::max<std::uint64_t>(expected, 1);
  if (found >= expected)
    return db;
  auto open_older = fmt::format(
    ", or remove {} to open the older models, which gives up all newer ones", stop_mark_path(path));
  return fail(
    errc::corrupt_data,
    "the index {0}/index ends at change {1}, but has had {2}; after a salvage, restore {0} from a "
    "copy{3}",
    path, found, *stopped_at ? std::to_string(expected) : "some", found > 0 ? open_older : "");
}

namespace {

result<std::unique_ptr<index>> open_index(
  const std::string& path, std::shared_ptr<index_reserve> reserve) {
  auto fresh = !has_index(path);
  // Opened to read first: opening it to write would make final what it has lost.
  if (!fresh)
    if (auto looked_at = open_index_to_read(path); !looked_at)
      return looked_at;
  auto db = index::open(path + "/index", fresh, std::move(reserve));
  if (!db)
    return db;
  if (auto bad = check_format(**db, path, true); !bad.ok())
    return fail(std::move(bad));
  return db;
}

// A bucket without a configured capacity may fill the file system. Its capacity includes the space
// that its segments take already.
status settle_capacity(rocksdb_bucket_options& options) {
  if (options.capacity_bytes != 0)
    return {};
  auto free = io::free_bytes(options.path);
  if (!free)
    return free.error();
  options.capacity_bytes = *free - std::min(*free, options.index_reserve_bytes);
  std::error_code why;
  for (auto& entry : fs::directory_iterator{options.path + "/segments", why})
    options.capacity_bytes += entry.file_size(why);
  return {};
}

} // namespace

result<bucket_files> open_bucket_files(rocksdb_bucket_options& options) {
  auto& path = options.path;
  if (auto bad = check_directory(path, options.create_if_missing); !bad.ok())
    return fail(std::move(bad));
  auto lock = lock_directory(path);
  if (!lock)
    return fail(lock.error());
  auto reserve = index_reserve::open(path, options.index_reserve_bytes);
  if (!reserve)
    return fail(reserve.error());
  auto db = open_index(path, *reserve);
  if (!db)
    return fail(db.error());
  auto segments = path + "/segments";
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
  auto account = std::make_shared<space_account>(options.capacity_bytes);
  auto space = segment_store::open(
    {segments, account, options.segment_bytes, options.direct_io, options.contiguous_staging,
     *reserve});
  if (!space)
    return fail(space.error());
  return bucket_files{
    std::move(*lock), std::move(account), std::move(*reserve), std::move(*db), std::move(*space)};
}

result<bucket_files> open_to_verify(const std::string& path) {
  if (!has_index(path)) {
    auto bad = check_no_index(path);
    return bad.ok() ? fail(errc::not_found, "{} holds no RocksDB bucket", path) : fail(bad);
  }
  auto file = io::open_file(path + "/bucket.lock", O_RDONLY);
  // A copy of a directory may lack it.
  if (!file && file.error().code() != errc::not_found)
    return fail(file.error());
  if (auto bad = file ? lock(*file, LOCK_SH, path) : status{}; !bad.ok())
    return fail(std::move(bad));
  auto db = open_index_to_read(path);
  if (!db)
    return fail(db.error());
  if (auto bad = check_format(**db, path, false); !bad.ok())
    return fail(std::move(bad));
  auto account = std::make_shared<space_account>(std::numeric_limits<std::uint64_t>::max());
  auto space = segment_store::open({path + "/segments", account, 0, false, false, nullptr});
  if (!space)
    return fail(space.error());
  return bucket_files{
    file ? std::move(*file) : io::file_handle{}, std::move(account), nullptr, std::move(*db),
    std::move(*space)};
}

} // namespace millrace::storage::rocksdb
