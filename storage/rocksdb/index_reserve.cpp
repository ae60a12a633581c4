// A preallocated file that shrinks and grows. Called by the index and the engine.
#include <millrace/core/log.hpp>
#include <millrace/storage/rocksdb/index_reserve.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace millrace::storage::rocksdb {

namespace {

// Given out at once, so that another process that fills the file system gets little of it. As much
// stays free when the reserve is filled again, so that the index does not take it back at once.
constexpr std::uint64_t step_bytes = 4u << 20;

} // namespace

result<std::shared_ptr<index_reserve>> index_reserve::open(
  const std::string& directory, std::uint64_t size_bytes) {
  auto path = directory + "/reserve";
  auto file = io::open_file(path, O_RDWR | O_CREAT);
  if (!file)
    return fail(file.error());
  struct stat info {};
  if (::fstat(file->get(), &info) != 0)
    return fail(status_from_errno(errno, "examining " + path));
  // A copy of the file may have holes, which hold nothing.
  auto held = std::min(
    {static_cast<std::uint64_t>(info.st_size), static_cast<std::uint64_t>(info.st_blocks) * 512,
     size_bytes});
  if (::ftruncate(file->get(), static_cast<off_t>(held)) != 0)
    return fail(status_from_errno(errno, "shortening " + path));
  std::shared_ptr<index_reserve> opened{
    new index_reserve{std::move(*file), std::move(path), size_bytes}};
  opened->held_bytes_ = held;
  return opened;
}

bool index_reserve::release(std::uint64_t size_bytes) noexcept {
  std::lock_guard guard{mutex_};
  auto held = held_bytes_.load();
  if (held == 0)
    return false;
  auto left = held - std::min(held, std::max(size_bytes, step_bytes));
  if (::ftruncate(file_.get(), static_cast<off_t>(left)) != 0)
    return false;
  if (held == size_bytes_)
    log().warn(
      "the file system is full: the index uses its reserve, and models are refused path={}", path_);
  held_bytes_ = left;
  return true;
}

bool index_reserve::restore() noexcept {
  std::lock_guard guard{mutex_};
  auto held = held_bytes_.load();
  auto free = io::free_bytes(path_);
  if (held == size_bytes_ || !free || *free <= step_bytes)
    return held == size_bytes_;
  auto wanted = held + std::min(size_bytes_ - held, *free - step_bytes);
  auto from = static_cast<off_t>(held);
  if (::posix_fallocate(file_.get(), from, static_cast<off_t>(wanted - held)) != 0) {
    // A part may have been taken.
    static_cast<void>(!::ftruncate(file_.get(), from));
    return false;
  }
  held_bytes_ = wanted;
  // Without this a power cut could make the file shorter. Then it is filled again at the next
  // start.
  static_cast<void>(::fsync(file_.get()));
  return wanted == size_bytes_;
}

result<std::uint64_t> index_reserve::available_bytes() const {
  auto free = io::free_bytes(path_);
  if (!free)
    return free;
  return *free + held_bytes_;
}

} // namespace millrace::storage::rocksdb
