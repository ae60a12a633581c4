// Making, filling and reusing segment files. Called by reservations, readers and the committer.
#include <millrace/core/assert.hpp>
#include <millrace/core/kill_point.hpp>
#include <millrace/core/planted_defect.hpp>
#include <millrace/core/rounding.hpp>
#include <millrace/storage/io/io_buffer.hpp>
#include <millrace/storage/io/packing.hpp>
#include <millrace/storage/rocksdb/segment_store.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace millrace::storage::rocksdb {

using namespace io;

space_lease::~space_lease() {
  if (store_)
    store_->release(charged_bytes_, extents_);
}

void space_lease::charge_more(std::uint64_t size_bytes) noexcept {
  store_->account().take_anyway(size_bytes);
  charged_bytes_ += size_bytes;
}

std::vector<file_run> locate(
  const std::vector<extent>& extents, std::uint64_t at, std::uint64_t length,
  std::uint64_t run_max_bytes) {
  std::vector<file_run> runs;
  for_each_run(extents, at, length, run_max_bytes, [&](auto& e, auto skip, auto part, auto from) {
    runs.push_back({e.file, e.offset + skip, part, from});
  });
  return runs;
}

result<std::shared_ptr<segment_store>> segment_store::open(options settings) {
  std::shared_ptr<segment_store> store{new segment_store{std::move(settings)}};
  if (auto bad = store->open_existing(); !bad.ok())
    return fail(std::move(bad));
  return store;
}

std::string segment_store::segment_path(std::uint32_t number) const {
  char name[32];
  std::snprintf(name, sizeof(name), "/%06u.seg", number);
  return options_.path + name;
}

result<file_handle> segment_store::open_segment(const std::string& path, int flags) const {
  return open_file(path, flags | (options_.direct_io ? O_DIRECT : 0));
}

status segment_store::open_existing() {
  std::error_code why;
  for (auto& entry : std::filesystem::directory_iterator{options_.path, why}) {
    auto name = entry.path().filename().string();
    std::uint32_t number = 0;
    auto [end, bad_number] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (bad_number != std::errc{} || std::string_view{end} != ".seg")
      continue;
    auto file = open_segment(entry.path(), options_.reserve ? O_RDWR : O_RDONLY);
    if (!file)
      return file.error();
    struct stat info {};
    if (::fstat(file->get(), &info) != 0)
      return status_from_errno(errno, "examining " + entry.path().string());
    auto size = round_down(static_cast<std::uint64_t>(info.st_size), extent_unit_bytes);
    auto holes = static_cast<std::uint64_t>(info.st_blocks) * 512 < size;
    segments_.emplace(number, segment{std::move(*file), entry.path(), size, holes});
    segments_bytes_ += size;
    if (size > 0)
      free_.release({number, 0, size});
  }
  if (why)
    return status_from_errno(why.value(), "listing " + options_.path);
  // A process that was killed may have made one, and not come to sync its name.
  return options_.reserve ? sync_directory(options_.path) : status{};
}

result<space_lease> segment_store::claim(const std::vector<extent>& extents) {
  std::lock_guard guard{mutex_};
  std::uint64_t size = 0;
  for (auto e = extents.begin(); e != extents.end(); ++e) {
    if (!free_.carve(*e)) {
      std::for_each(extents.begin(), e, [&](auto& taken) { free_.release(taken); });
      return fail(
        errc::corrupt_data, "bytes {}+{} of {} are missing or belong to another model", e->offset,
        e->length, segment_path(e->file));
    }
    size += e->length;
  }
  options_.account->take_anyway(size);
  return space_lease{shared_from_this(), size, extents};
}

status segment_store::trim() {
  std::lock_guard guard{mutex_};
  auto kept = false;
  for (auto at = segments_.begin(); at != segments_.end();) {
    auto& [number, s] = *at;
    auto empty = s.size_bytes == 0;
    if (!empty && (!free_.is_free(number, s.size_bytes) || !std::exchange(kept, true))) {
      ++at;
      continue;
    }
    if (!empty)
      free_.carve({number, 0, s.size_bytes});
    segments_bytes_ -= s.size_bytes;
    if (::unlink(s.path.c_str()) != 0)
      return status_from_errno(errno, "removing " + s.path);
    at = segments_.erase(at);
  }
  return {};
}

result<space_lease> segment_store::take(const space_need& need) {
  if (need.anyway)
    options_.account->take_anyway(need.charged_bytes());
  else if (auto bad = options_.account->take(need.charged_bytes()); !bad.ok())
    return fail(std::move(bad));
  space_lease taken{shared_from_this(), need.charged_bytes(), {}};
  if (need.extents_bytes() == 0)
    return taken;
  auto extents = allocate(need.extents_bytes());
  if (!extents)
    return fail(extents.error());
  taken.leave_taken();
  taken = space_lease{shared_from_this(), need.charged_bytes(), std::move(*extents)};
  if (auto bad = fill_holes(taken.extents()); !bad.ok())
    return fail(std::move(bad));
  return taken;
}

result<std::vector<extent>> segment_store::allocate(std::uint64_t size_bytes) {
  std::lock_guard one_grows{growing_};
  for (;;) {
    std::uint64_t missing;
    {
      std::lock_guard guard{mutex_};
      if (auto extents = free_.allocate(size_bytes))
        return std::move(*extents);
      missing = size_bytes - free_.free_bytes();
    }
    if (auto bad = grow(missing); !bad.ok())
      return fail(std::move(bad));
  }
}

// Adds a whole segment if the capacity and the disk allow it, else only what is missing.
status segment_store::grow(std::uint64_t missing_bytes) {
  auto capacity = options_.account->capacity_bytes();
  auto unused = capacity - std::min(segments_bytes_, capacity);
  auto whole = std::min(options_.segment_bytes, round_down(unused, extent_unit_bytes));
  auto least = std::min(missing_bytes, options_.segment_bytes);
  auto outcome = add_segment(std::max(whole, least));
  if (outcome.code() == errc::no_space && whole > least)
    outcome = add_segment(least);
  return outcome;
}

// The index grows with the models, so segments leave it as much free as its reserve holds.
status segment_store::leave_free(std::uint64_t size_bytes) const {
  auto free = io::free_bytes(options_.path);
  if (!free)
    return free.error();
  auto kept = options_.reserve->size_bytes();
  if (*free >= kept && *free - kept >= size_bytes)
    return {};
  return {
    errc::no_space,
    "asked for {} bytes of the file system of {}, which has {} free and keeps {} for the index "
    "(index_reserve); erase models, or free space there",
    size_bytes,
    options_.path,
    *free,
    kept};
}

status segment_store::add_segment(std::uint64_t size_bytes) {
  if (auto bad = leave_free(size_bytes); !bad.ok())
    return bad;
  std::uint32_t number = 1;
  while (segments_.count(number))
    ++number;
  auto path = segment_path(number);
  auto file = open_segment(path, O_RDWR | O_CREAT | O_TRUNC);
  if (!file)
    return file.error();
  MILLRACE_KILL_POINT("rocksdb.grow.before_allocate");
  auto error = ::posix_fallocate(file->get(), 0, static_cast<off_t>(size_bytes));
  MILLRACE_KILL_POINT("rocksdb.grow.before_sync");
  if (error == 0 && ::fsync(file->get()) != 0)
    error = errno;
  auto outcome = error == 0
    ? sync_directory(options_.path)
    : status_from_errno(error, fmt::format("taking {} bytes of disk for {}", size_bytes, path));
  if (!outcome.ok()) {
    ::unlink(path.c_str());
    return outcome;
  }
  std::lock_guard guard{mutex_};
  segments_.emplace(number, segment{std::move(*file), path, size_bytes});
  segments_bytes_ += size_bytes;
  free_.release({number, 0, size_bytes});
  return {};
}

segment_store::segment& segment_store::find(std::uint32_t file) {
  std::lock_guard guard{mutex_};
  auto at = segments_.find(file);
  MILLRACE_ASSERT(at != segments_.end());
  return at->second; // segments stay where they are until the store closes
}

status segment_store::write(const file_run& run, const std::byte* data) {
  auto& s = find(run.file);
  if (auto* buffer = buffer_for(run))
    data = static_cast<std::byte*>(std::memcpy(buffer, data, run.length));
  return write_all(s.file, data, run.length, run.offset, s.path);
}

status segment_store::read(const file_run& run, std::byte* data) {
  auto& s = find(run.file);
  auto* buffer = buffer_for(run);
  auto outcome = read_all(s.file, buffer ? buffer : data, run.length, run.offset, s.path);
  if (buffer && outcome.ok())
    std::memcpy(data, buffer, run.length);
  return outcome;
}

// A contiguous buffer for the request, where the device is faster with it; else null.
std::byte* segment_store::buffer_for(const file_run& run) const noexcept {
  bool helps = options_.direct_io && !options_.contiguous_staging;
  return helps && run.length <= io_buffer_bytes ? io_buffer() : nullptr;
}

status segment_store::sync(std::uint32_t file) {
  auto& s = find(file);
  if (!is_planted(defect::segment_not_synced) && ::fdatasync(s.file.get()) != 0)
    return status_from_errno(errno, "syncing " + s.path);
  return {};
}

void segment_store::release(std::uint64_t charged_bytes, const std::vector<extent>& extents) {
  // Punched before they are free, when no one can have written to them.
  auto is_short = leases_free_ && !extents.empty() && !options_.reserve->whole();
  if (is_short)
    punch(extents);
  {
    std::lock_guard guard{mutex_};
    for (auto& e : extents)
      free_.release(e);
  }
  options_.account->give_back(charged_bytes);
  if (is_short)
    options_.reserve->restore();
}

void segment_store::give_back() {
  std::lock_guard one_grows{growing_};
  std::optional<std::vector<extent>> free;
  {
    std::lock_guard guard{mutex_};
    free = free_.allocate(free_.free_bytes());
  }
  punch(*free);
  std::lock_guard guard{mutex_};
  for (auto& e : *free)
    free_.release(e);
}

// Needs extents that are not in use. A file system without holes keeps the space.
void segment_store::punch(const std::vector<extent>& extents) {
  for (auto& e : extents) {
    auto& s = find(e.file);
    auto punched = ::fallocate(
                     s.file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                     static_cast<off_t>(e.offset), static_cast<off_t>(e.length)) == 0;
    std::lock_guard guard{mutex_};
    s.has_holes = s.has_holes || punched;
  }
}

status segment_store::fill_holes(const std::vector<extent>& extents) {
  for (auto& e : extents) {
    auto& s = find(e.file);
    {
      std::lock_guard guard{mutex_};
      if (!s.has_holes)
        continue;
    }
    auto offset = static_cast<off_t>(e.offset);
    auto error = ::posix_fallocate(s.file.get(), offset, static_cast<off_t>(e.length));
    if (error != 0)
      return status_from_errno(error, fmt::format("taking {} bytes of {}", e.length, s.path));
  }
  return {};
}

} // namespace millrace::storage::rocksdb
