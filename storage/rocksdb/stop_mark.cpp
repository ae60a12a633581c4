// A file of one line. Called when a bucket's directory is opened and when the engine stops.
#include <millrace/core/digest.hpp>
#include <millrace/storage/io/file_io.hpp>
#include <millrace/storage/rocksdb/stop_mark.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <sstream>

namespace millrace::storage::rocksdb {

namespace {

std::string line_of(std::uint64_t last_change) {
  auto text = fmt::format("millrace-rocksdb-stopped 1 {}", last_change);
  return fmt::format("{} {:016x}\n", text, digest(text.data(), text.size()));
}

} // namespace

std::string stop_mark_path(const std::string& directory) { return directory + "/stopped"; }

status write_stop_mark(const std::string& directory, std::uint64_t last_change) {
  auto path = stop_mark_path(directory);
  auto unfinished = path + ".new";
  auto text = line_of(last_change);
  auto file = io::open_file(unfinished, O_WRONLY | O_CREAT | O_TRUNC);
  if (!file)
    return file.error();
  if (auto bad = io::write_all(*file, text.data(), text.size(), 0, unfinished); !bad.ok())
    return bad;
  if (::fsync(file->get()) != 0)
    return status_from_errno(errno, "syncing " + unfinished);
  if (::rename(unfinished.c_str(), path.c_str()) != 0)
    return status_from_errno(errno, "renaming " + unfinished);
  return io::sync_directory(directory);
}

result<std::optional<std::uint64_t>> read_stop_mark(const std::string& directory) {
  auto path = stop_mark_path(directory);
  auto file = io::open_file(path, O_RDONLY);
  if (!file && file.error().code() == errc::not_found)
    return std::optional<std::uint64_t>{};
  if (!file)
    return fail(file.error());
  std::ostringstream text;
  text << std::ifstream{path}.rdbuf();
  unsigned long long last_change = 0;
  if (
    std::sscanf(text.str().c_str(), "millrace-rocksdb-stopped 1 %llu", &last_change) == 1 &&
    text.str() == line_of(last_change))
    return std::optional<std::uint64_t>{last_change};
  return fail(
    errc::corrupt_data,
    "the mark of the last orderly stop is damaged; check the disk, then remove {} to open what is "
    "there",
    path);
}

} // namespace millrace::storage::rocksdb
