// Reads RocksDB's log format: blocks of 32 KiB, in them records of a checksum, a size, a type and
// bytes. https://github.com/facebook/rocksdb/wiki/Write-Ahead-Log-File-Format
#include <millrace/storage/io/file_io.hpp>
#include <millrace/storage/rocksdb/log_check.hpp>

#include <fcntl.h>
#include <isa-l/crc.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::storage::rocksdb {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t block_bytes = 32768;
constexpr std::size_t header_bytes = 7;
enum record_type : std::uint8_t { whole = 1, first = 2, last = 4 };

/// The bytes of the record at `at`, with its header; 0: there is no record whose checksum agrees.
std::size_t record_at(const std::string& log, std::size_t at) {
  auto left = std::min(block_bytes - at % block_bytes, log.size() - at);
  if (left < header_bytes)
    return 0;
  auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(log[at + i]); };
  auto size = static_cast<std::size_t>(byte(4)) | static_cast<std::size_t>(byte(5)) << 8;
  if (header_bytes + size > left)
    return 0;
  std::uint32_t expected = 0;
  std::memcpy(&expected, log.data() + at, sizeof expected);
  auto checked = reinterpret_cast<unsigned char*>(const_cast<char*>(log.data() + at + 6));
  auto sum = ~crc32_iscsi(checked, static_cast<int>(size + 1), ~0u);
  // RocksDB stores sums masked like this, because a checksum of data with checksums in it is weak.
  auto stored = (sum >> 15 | sum << 17) + 0xa282ead8u;
  return stored == expected ? header_bytes + size : 0;
}

/// Where the next record may begin: a block's last bytes, which hold no header, are left out.
std::size_t next_place(std::size_t at) {
  auto left = block_bytes - at % block_bytes;
  return left < header_bytes ? at + left : at;
}

/// What can be read of a log from its beginning.
struct readable_part {
  std::size_t end = 0; // where its last batch ends; without damage, the size of the log
  // Changes are numbered. Those of the batches here; 0: there is none.
  std::uint64_t first_change = 0, end_change = 0;
};

std::uint64_t number_in(const std::string& bytes, std::size_t at, std::size_t size_bytes) {
  std::uint64_t number = 0;
  std::memcpy(&number, bytes.data() + at, size_bytes);
  return number;
}

readable_part read_batches(const std::string& log) {
  // A batch begins with the number of its first change, 8 bytes, and their count, 4.
  constexpr std::size_t head_bytes = 12;
  readable_part found;
  std::string head;
  bool within = false; // a batch of several records
  for (std::size_t at = 0; at < log.size();) {
    auto size = record_at(log, at);
    auto type = size > 0 ? static_cast<std::uint8_t>(log[at + 6]) : 0;
    auto begins = type == whole || type == first, ends = type == whole || type == last;
    if (size == 0 || begins == within)
      return found;
    if (begins)
      head.clear();
    auto lacks = head_bytes - std::min(head_bytes, head.size());
    head.append(log, at + header_bytes, std::min(lacks, size - header_bytes));
    at = next_place(at + size);
    within = !ends;
    if (within)
      continue;
    found.end = std::min(at, log.size());
    if (head.size() == head_bytes) {
      auto change = number_in(head, 0, 8);
      if (found.first_change == 0)
        found.first_change = change;
      found.end_change = change + number_in(head, 8, 4);
    }
  }
  return found;
}

bool begins_batch(const std::string& log, std::size_t at) {
  auto type = at + header_bytes <= log.size() ? static_cast<std::uint8_t>(log[at + 6]) : 0;
  return (type == whole || type == first) && record_at(log, at) > 0;
}

result<std::string> read_log(const fs::path& path) {
  auto file = io::open_file(path, O_RDONLY);
  if (!file)
    return fail(file.error());
  std::error_code why;
  auto size = fs::file_size(path, why);
  if (why)
    return fail(status_from_errno(why.value(), "examining " + path.string()));
  std::string log(size, '\0');
  if (auto bad = io::read_all(*file, log.data(), log.size(), 0, path); !bad.ok())
    return fail(bad);
  return log;
}

status damaged(const fs::path& path, std::size_t at) {
  return {
    errc::corrupt_data, "{} cannot be read at byte {}, and there are changes behind it",
    path.string(), at};
}

} // namespace

result<std::uint64_t> check_logs(const std::string& directory) {
  std::vector<std::pair<std::uint64_t, fs::path>> logs;
  std::error_code why;
  for (fs::directory_iterator at{directory, why}, end; !why && at != end; at.increment(why)) {
    auto name = at->path().filename().string();
    std::uint64_t number = 0;
    auto [rest, bad] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (bad == std::errc{} && std::string_view{rest} == ".log")
      logs.emplace_back(number, at->path());
  }
  std::ranges::sort(logs);
  // These describe the log before this one. What is torn there was not synced, so the next log
  // begins with the number of that change.
  fs::path torn;
  readable_part before;
  std::uint64_t first_change = 0;
  for (auto& [number, path] : logs) {
    auto log = read_log(path);
    if (!log)
      return fail(log.error());
    auto found = read_batches(*log);
    if (!torn.empty() && before.end_change != 0 && found.first_change > before.end_change)
      return fail(damaged(torn, before.end));
    for (auto at = found.end + 1; at < log->size(); ++at)
      if (begins_batch(*log, at))
        return fail(damaged(path, found.end));
    torn = found.end < log->size() ? path : fs::path{};
    before = found;
    if (first_change == 0)
      first_change = found.first_change;
  }
  return first_change;
}

} // namespace millrace::storage::rocksdb
