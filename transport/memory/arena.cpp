// Makes memfd arenas, and keeps the table that finds arenas by address.
// Called by the fabric and by drivers.
#include <millrace/core/background_thread.hpp>
#include <millrace/core/log.hpp>
#include <millrace/core/process_mark.hpp>
#include <millrace/core/rounding.hpp>
#include <millrace/transport/memory/arena.hpp>
#include <millrace/transport/memory/mapped_file.hpp>

#include <fcntl.h>
#include <fmt/core.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace millrace::transport {

namespace {

constexpr std::uint64_t huge_page_bytes = 2u << 20;
constexpr std::uint64_t stat_block_bytes = 512;

// The seals that keep a mapping from faulting. With the one against writing, only the mapping of
// the owner can still write, and no process can punch holes.
constexpr int seals_of(arena_sharing sharing) {
  constexpr int required = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  return required | (sharing == arena_sharing::read_only ? F_SEAL_FUTURE_WRITE : 0);
}

struct arena_table {
  std::mutex mutex;
  std::map<const std::byte*, std::weak_ptr<arena>> by_address;
};

arena_table& all_arenas() { return one_per_process<arena_table>(); }

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> next = 1;
  return next++;
}

// Returns true if a living arena overlaps the range. The caller holds the table's mutex. Arenas
// found alive go into `keep`, since their destructor takes the same mutex.
bool overlaps(
  const std::byte* data, std::uint64_t size_bytes, std::vector<std::shared_ptr<arena>>& keep) {
  auto& all = all_arenas().by_address;
  auto i = all.lower_bound(data);
  if (i != all.begin())
    --i;
  for (; i != all.end() && i->first < data + size_bytes; ++i)
    if (auto a = i->second.lock()) {
      keep.push_back(a);
      if (a->data() + a->size_bytes() > data)
        return true;
    }
  return false;
}

// Touches every page. Uses several threads, since zeroing the pages takes most of the time.
int touch(std::byte* data, std::uint64_t size_bytes) {
  auto parts =
    std::clamp<std::uint64_t>(size_bytes / (64u << 20), 1, std::thread::hardware_concurrency());
  auto part_bytes = round_up(size_bytes / parts, huge_page_bytes);
  std::vector<std::thread> threads;
  std::atomic<int> failed = 0;
  auto touch_part = [&](std::uint64_t at) {
    auto length = std::min(part_bytes, size_bytes - at);
    if (madvise(data + at, length, MADV_POPULATE_WRITE) == 0)
      return;
    // Kernels before 5.14 answer EINVAL.
    if (errno != EINVAL)
      failed = errno;
    else
      for (std::uint64_t page = 0; page < length; page += 4096)
        *static_cast<volatile std::byte*>(data + at + page) = std::byte{0};
  };
  threads.reserve(parts);
  for (std::uint64_t at = 0; at < size_bytes; at += part_bytes)
    try {
      threads.push_back(background_thread([&touch_part, at] { touch_part(at); }));
    } catch (const std::system_error&) {
      // This thread does the part itself, only more slowly.
      touch_part(at);
    }
  for (auto& t : threads)
    t.join();
  return failed;
}

// Returns the bytes that the system can give without swapping; the largest number if it does not
// say.
std::uint64_t available_bytes() {
  std::ifstream meminfo{"/proc/meminfo"};
  for (std::string line; std::getline(meminfo, line);)
    if (line.starts_with("MemAvailable:"))
      return std::strtoull(line.c_str() + sizeof("MemAvailable:"), nullptr, 10) * 1024;
  return ~std::uint64_t{0};
}

// Maps at an address at which the kernel can use huge pages, if the file has one. For pages of the
// system's pool the kernel finds one by itself, and knows their size.
void* map_shared(int fd, std::uint64_t size_bytes, int protection) {
  if (size_bytes < huge_page_bytes || is_of_huge_page_pool(fd))
    return mmap(nullptr, size_bytes, protection, MAP_SHARED, fd, 0);
  auto wide = round_up(size_bytes, 4096) + huge_page_bytes;
  auto* room = mmap(nullptr, wide, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED)
    return room;
  auto* begin = static_cast<std::byte*>(room);
  auto* end = begin + wide;
  auto* data = begin + -reinterpret_cast<std::uintptr_t>(begin) % huge_page_bytes;
  auto* mapped = mmap(data, size_bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0);
  if (mapped == MAP_FAILED) {
    int why = errno;
    munmap(begin, wide);
    errno = why;
    return MAP_FAILED;
  }
  auto* rest = data + round_up(size_bytes, 4096);
  if (data > begin)
    munmap(begin, static_cast<std::size_t>(data - begin));
  if (end > rest)
    munmap(rest, static_cast<std::size_t>(end - rest));
  return mapped;
}

// Makes and maps a memfd of the size asked for. Huge pages are used only if the pool has enough of
// them.
int open_memfd(const arena_options& options, std::uint64_t size_bytes, bool huge, void*& data) {
  int fd =
    memfd_create(options.name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB : 0u));
  if (fd < 0)
    return -1;
  if (ftruncate(fd, static_cast<off_t>(size_bytes)) == 0) {
    data = map_shared(fd, size_bytes, PROT_READ | PROT_WRITE);
    if (data != MAP_FAILED)
      return fd;
  }
  int why = errno;
  close(fd);
  errno = why;
  return -1;
}

// Seals the memory for reading by peers. Returns false where the kernel cannot.
result<bool> seal_for_readers(int fd, const std::string& name) {
  if (fcntl(fd, F_ADD_SEALS, seals_of(arena_sharing::read_only)) == 0)
    return true;
  if (errno != EINVAL)
    return fail(status_from_errno(errno, "sealing an arena"));
  log().info("arena is not mapped by peers name={} why=\"the kernel is older than 5.1\"", name);
  return false;
}

} // namespace

// Touching more memory than there is would wake the kernel's OOM killer instead of failing.
status arena::check_available(const std::string& doing, std::uint64_t size_bytes) {
  auto available = available_bytes();
  return size_bytes <= available
    ? status{}
    : status{
        errc::no_space, "{}: the system has {} bytes available; give it less", doing, available};
}

result<std::shared_ptr<arena>> arena::create(const arena_options& options) {
  auto doing = fmt::format("making an arena of {} bytes for {}", options.size_bytes, options.name);
  if (options.size_bytes == 0)
    return fail(errc::invalid_argument, doing);
  if (auto bad = check_available(doing, options.size_bytes); !bad.ok())
    return fail(bad);
  std::shared_ptr<arena> a{new arena};
  void* data = nullptr;
  // Whoever can write to pages of the system's pool can take them out, and others fault.
  a->huge_ = options.huge_pages && options.size_bytes >= huge_page_bytes &&
    options.sharing != arena_sharing::read_write;
  a->size_bytes_ = round_up(options.size_bytes, a->huge_ ? huge_page_bytes : 4096);
  if (a->huge_)
    a->fd_ = net::unique_fd{open_memfd(options, a->size_bytes_, true, data)};
  if (!a->fd_) {
    a->huge_ = false;
    a->size_bytes_ = round_up(options.size_bytes, 4096);
    a->fd_ = net::unique_fd{open_memfd(options, a->size_bytes_, false, data)};
  }
  if (!a->fd_)
    return fail(status_from_errno(errno, doing));
  a->data_ = static_cast<std::byte*>(data);
  if (!a->huge_)
    madvise(a->data_, a->size_bytes_, MADV_HUGEPAGE);
  if (int why = touch(a->data_, a->size_bytes_); why != 0)
    return fail(errc::no_space, status_from_errno(why, doing).detail());
  a->locked_ = options.lock && mlock(a->data_, a->size_bytes_) == 0;
  a->sharing_ = options.sharing;
  if (a->sharing_ == arena_sharing::read_only) {
    auto sealed = seal_for_readers(a->fd(), options.name);
    if (!sealed)
      return fail(sealed.error().within(doing));
    a->mappable_ = *sealed;
  }
  if (!a->mappable_ && fcntl(a->fd(), F_ADD_SEALS, seals_of(arena_sharing::transfers)) != 0)
    return fail(status_from_errno(errno, doing));
  if (a->sharing_ == arena_sharing::read_write)
    a->mappable_ = true;
  a->id_ = next_id();
  std::lock_guard guard{all_arenas().mutex};
  all_arenas().by_address[a->data_] = a;
  return a;
}

result<std::shared_ptr<arena>> arena::adopt(const file_mapping& mapping) {
  auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  auto doing = fmt::format("registering a mapping of {} bytes", mapping.size_bytes);
  auto flags = fcntl(mapping.fd, F_GETFL);
  if (
    !mapping.data || reinterpret_cast<std::uintptr_t>(mapping.data) % page != 0 ||
    mapping.file_offset % page != 0 || flags < 0 || (flags & O_ACCMODE) != O_RDWR)
    return fail(
      errc::invalid_argument,
      doing + ": it needs whole pages and a descriptor open for reading and writing");
  auto there = mappable_bytes(mapping.fd);
  if (!there)
    return fail(there.error().within(doing));
  if (
    mapping.size_bytes == 0 || *there < mapping.file_offset ||
    *there - mapping.file_offset < mapping.size_bytes)
    return fail(errc::invalid_argument, "{}: the file has {} bytes", doing, *there);
  std::shared_ptr<arena> a{new arena};
  a->is_file_ = true;
  a->fd_ = net::unique_fd{fcntl(mapping.fd, F_DUPFD_CLOEXEC, 0)};
  if (!a->fd_)
    return fail(status_from_errno(errno, doing));
  a->id_ = next_id();
  a->file_offset_ = mapping.file_offset;
  a->size_bytes_ = mapping.size_bytes;
  std::vector<std::shared_ptr<arena>> keep;
  std::lock_guard guard{all_arenas().mutex};
  if (overlaps(mapping.data, mapping.size_bytes, keep))
    return fail(errc::already_exists, doing + ": part of it is registered already");
  a->data_ = mapping.data;
  all_arenas().by_address[a->data_] = a;
  return a;
}

arena::~arena() {
  if (!data_)
    return;
  {
    std::lock_guard guard{all_arenas().mutex};
    // The mapping may have been given up and the same addresses adopted again.
    auto mine = all_arenas().by_address.find(data_);
    if (mine != all_arenas().by_address.end() && mine->second.expired())
      all_arenas().by_address.erase(mine);
  }
  pins_.clear();
  if (!is_file_)
    munmap(data_, size_bytes_);
}

void arena::pin_for(device_memory& device) {
  if (!is_file_)
    pins_.pin_for(device, data_, size_bytes_);
}

result<arena_place> find_arena(const std::byte* data, std::uint64_t length) {
  // Outlives the guard, since its destructor takes the same mutex.
  std::shared_ptr<arena> a;
  {
    std::lock_guard guard{all_arenas().mutex};
    auto after = all_arenas().by_address.upper_bound(data);
    if (after != all_arenas().by_address.begin())
      a = std::prev(after)->second.lock();
  }
  if (a) {
    auto offset = static_cast<std::uint64_t>(data - a->data());
    if (offset <= a->size_bytes() && length <= a->size_bytes() - offset)
      return arena_place{std::move(a), offset};
  }
  return fail(errc::internal, "memory that is in no arena");
}

bool is_of_huge_page_pool(int fd) noexcept {
  struct statfs system {};
  return fstatfs(fd, &system) == 0 && system.f_type == HUGETLBFS_MAGIC;
}

result<std::shared_ptr<mapped_arena>> mapped_arena::map(
  int fd, std::uint64_t size_bytes, arena_sharing sharing) {
  struct stat info {};
  int seals = fcntl(fd, F_GET_SEALS), required = seals_of(sharing);
  if (
    seals < 0 || (seals & required) != required || fstat(fd, &info) != 0 || size_bytes == 0 ||
    static_cast<std::uint64_t>(info.st_size) < size_bytes)
    return fail(
      errc::permission_denied, "the peer's arena is no sealed memfd of the announced size");
  // Arenas are touched when they are made. Missing pages would be charged to this process.
  if (static_cast<std::uint64_t>(info.st_blocks) * stat_block_bytes < size_bytes)
    return fail(errc::permission_denied, "the peer's arena has holes");
  int writing = sharing == arena_sharing::read_only ? 0 : PROT_WRITE;
  auto* data = map_shared(fd, size_bytes, PROT_READ | writing);
  if (data == MAP_FAILED)
    return fail(status_from_errno(errno, "mapping a peer's arena"));
  std::shared_ptr<mapped_arena> m{new mapped_arena};
  m->data_ = static_cast<std::byte*>(data);
  m->size_bytes_ = size_bytes;
  m->sharing_ = sharing;
  return m;
}

mapped_arena::~mapped_arena() {
  pins_.clear();
  munmap(data_, size_bytes_);
}

void mapped_arena::populate(std::uint64_t offset, std::uint64_t length) noexcept {
  madvise(
    data_ + offset, std::min(length, size_bytes_ - offset),
    sharing_ == arena_sharing::read_only ? MADV_POPULATE_READ : MADV_POPULATE_WRITE);
}

} // namespace millrace::transport
