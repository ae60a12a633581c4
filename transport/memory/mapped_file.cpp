// Reserved addresses, filled granule by granule.
// Used by drivers of one host for files that their peers have adopted.
#include <millrace/core/dax_device.hpp>
#include <millrace/transport/memory/mapped_file.hpp>

#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace millrace::transport {

namespace {

// Addresses and file offsets are equal modulo this, so that the kernel can use huge pages.
constexpr std::uint64_t alignment = 2u << 20;
constexpr std::uint64_t granule_bytes_min = 64u << 10;
constexpr std::uint64_t granule_bytes_max = 1ull << 40;
// Page tables are filled in pieces of this size.
constexpr std::uint64_t populate_bytes_max = 1u << 20;

// Reserves addresses; reading them where allowed gives zeros. Null if there is no room.
void* reserve_addresses(std::uint64_t size_bytes, int protection) {
  auto* at =
    mmap(nullptr, size_bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? nullptr : at;
}

} // namespace

result<std::uint64_t> mappable_bytes(int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0)
    return fail(status_from_errno(errno, "asking for the size of a file to map"));
  if (S_ISREG(info.st_mode))
    return static_cast<std::uint64_t>(info.st_size);
  if (S_ISCHR(info.st_mode))
    if (auto device = find_dax_device(info.st_rdev); device && device->size_bytes > 0)
      return device->size_bytes;
  return fail(errc::invalid_argument, "it is neither a regular file nor a DAX device");
}

result<std::shared_ptr<mapped_file>> mapped_file::reserve(
  net::unique_fd fd, const file_range& where) {
  auto there = mappable_bytes(fd.get());
  if (
    !there || where.size_bytes == 0 || where.file_offset % 4096 != 0 ||
    *there < where.file_offset || *there - where.file_offset < where.size_bytes ||
    !std::has_single_bit(where.granule_bytes) || where.granule_bytes < granule_bytes_min ||
    where.granule_bytes > granule_bytes_max)
    return fail(
      errc::permission_denied, "what the peer announced is no file or device of that size");
  std::shared_ptr<mapped_file> m{new mapped_file};
  m->fd_ = std::move(fd);
  m->where_ = where;
  m->populate_bytes_ = std::min(populate_bytes_max, where.granule_bytes);
  struct statfs system {};
  // Other file systems write-protect a page after they have written it out; the next store faults.
  m->filled_stays_ = fstatfs(m->fd_.get(), &system) == 0 && system.f_type == TMPFS_MAGIC;
  m->reserved_bytes_ = where.size_bytes + 2 * alignment;
  m->filled_bytes_ = where.size_bytes / m->populate_bytes_ + 1;
  m->reserved_ = static_cast<std::byte*>(reserve_addresses(m->reserved_bytes_, PROT_NONE));
  m->filled_ = static_cast<std::atomic<std::uint8_t>*>(
    reserve_addresses(m->filled_bytes_, PROT_READ | PROT_WRITE));
  if (!m->reserved_ || !m->filled_)
    return fail(errc::unsupported, "no addresses for the peer's file");
  auto address = reinterpret_cast<std::uintptr_t>(m->reserved_);
  m->data_ = m->reserved_ + (where.file_offset - address) % alignment;
  return m;
}

mapped_file::~mapped_file() {
  if (reserved_)
    munmap(reserved_, reserved_bytes_);
  if (filled_)
    munmap(static_cast<void*>(filled_), filled_bytes_);
}

status mapped_file::grant(std::uint64_t offset, std::uint64_t length) {
  auto size = where_.size_bytes;
  bool whole = offset % where_.granule_bytes == 0 && offset < size && length > 0 &&
    length <= size - offset && (length % where_.granule_bytes == 0 || length == size - offset);
  if (!whole)
    return {errc::permission_denied, "a grant that is not made of granules"};
  std::lock_guard guard{mutex_};
  for (auto end = offset + length; offset < end;) {
    auto next = granted_.upper_bound(offset);
    if (next != granted_.begin() && std::prev(next)->second > offset) {
      offset = std::prev(next)->second;
      continue;
    }
    auto gap = std::min(end, next == granted_.end() ? end : next->first) - offset;
    if (auto bad = map_locked(offset, gap); !bad.ok())
      return bad;
    add_locked(offset, gap);
  }
  return {};
}

status mapped_file::map_locked(std::uint64_t offset, std::uint64_t length) {
  auto at = static_cast<off_t>(where_.file_offset + offset);
  auto map = [&](int flags) {
    return mmap(data_ + offset, length, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd_.get(), at);
  };
  // With MAP_SYNC, data written back is durable even where a page fault had to allocate or convert
  // blocks.
  auto* mapped = may_sync_ ? map(MAP_SHARED_VALIDATE | MAP_SYNC) : MAP_FAILED;
  if (mapped == MAP_FAILED) {
    may_sync_ = false;
    mapped = map(MAP_SHARED);
  }
  if (mapped == MAP_FAILED)
    return {errc::unsupported, status_from_errno(errno, "mapping a peer's file").detail()};
  return {};
}

// Adds a run and joins it with the neighbours that it touches.
void mapped_file::add_locked(std::uint64_t offset, std::uint64_t length) {
  auto end = offset + length;
  if (auto after = granted_.find(end); after != granted_.end()) {
    end = after->second;
    granted_.erase(after);
  }
  auto next = granted_.upper_bound(offset);
  if (next != granted_.begin() && std::prev(next)->second == offset)
    std::prev(next)->second = end;
  else
    granted_.emplace(offset, end);
}

bool mapped_file::granted(std::uint64_t offset, std::uint64_t length) const {
  std::lock_guard guard{mutex_};
  auto next = granted_.upper_bound(offset);
  return length == 0 || (next != granted_.begin() && std::prev(next)->second >= offset + length);
}

std::size_t mapped_file::runs() const {
  std::lock_guard guard{mutex_};
  return granted_.size();
}

status mapped_file::populate(std::uint64_t offset, std::uint64_t length, direction dir) {
  // The direction is the owner's: the owner reads into its file, so this copy writes there.
  auto writes = dir == direction::read;
  auto advice = writes ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
  auto wanted = static_cast<std::uint8_t>(writes ? 2 : 1);
  if (!granted(offset, length))
    return {errc::permission_denied, "a part of the peer's file that was not granted"};
  auto end = offset + length;
  for (auto at = offset / populate_bytes_ * populate_bytes_; at < end; at += populate_bytes_) {
    auto* piece = filled_ + at / populate_bytes_;
    if (*piece >= wanted && (filled_stays_ || !writes))
      continue;
    auto bytes = std::min(populate_bytes_, where_.size_bytes - at);
    // Kernels before 5.14 return EINVAL.
    if (madvise(data_ + at, bytes, advice) != 0 && errno != EINVAL)
      return {
        errc::io_error,
        status_from_errno(
          errno, "reaching a part of the peer's file (cut short, or no room for its holes)")
          .detail()};
    *piece = wanted;
  }
  return {};
}

} // namespace millrace::transport
