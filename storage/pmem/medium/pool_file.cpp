// Detects media, takes locks, checks headers, and makes pools. Called before libpmemobj opens a
// file.
#include <millrace/core/clock.hpp>
#include <millrace/core/dax_device.hpp>
#include <millrace/core/ids.hpp>
#include <millrace/core/kill_point.hpp>
#include <millrace/storage/pmem/medium/heap_check.hpp>
#include <millrace/storage/pmem/medium/pool_file.hpp>

#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace millrace::storage::pmem {

namespace {

// The parts of libpmemobj's own header (its stored format, version 6) that we check before it opens
// the file.
constexpr std::uint32_t pmemobj_major = 6;
struct foreign_header {
  char signature[8];
  std::uint32_t major = 0;
};
constexpr std::uint64_t descriptor_at = 4096;
static_assert(offsetof(pool_descriptor, root_offset) == 2048);

std::optional<dax_device> device_of(const struct stat& info) {
  return S_ISCHR(info.st_mode) ? find_dax_device(info.st_rdev) : std::nullopt;
}

// Not `pmem_is_pmem`, whose answer can be forced by the environment.
bool maps_synchronously(int fd) {
  auto p = ::mmap(nullptr, descriptor_at, PROT_READ, MAP_SHARED_VALIDATE | MAP_SYNC, fd, 0);
  if (p == MAP_FAILED)
    return false;
  ::munmap(p, descriptor_at);
  return true;
}

bool is_in_memory(const struct statfs& system) {
  for (std::uint64_t type : {TMPFS_MAGIC + 0ul, HUGETLBFS_MAGIC + 0ul, RAMFS_MAGIC + 0ul})
    if (static_cast<std::uint32_t>(system.f_type) == type)
      return true;
  return false;
}

pool_medium find_medium(int fd, bool device) {
  if (device)
    return pool_medium::dax;
  struct statfs info {};
  if (::fstatfs(fd, &info) == 0 && is_in_memory(info))
    return pool_medium::memory;
  return maps_synchronously(fd) ? pool_medium::dax : pool_medium::file;
}

// Locks the open file, not the process: the lock is kept until the last copy of the descriptor is
// closed. libpmemobj later takes a lock of another kind, which does not conflict with this one.
status lock_file(const io::file_handle& file, const std::string& path) {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (::fcntl(file.get(), F_OFD_SETLK, &whole) == 0)
    return {};
  if (errno == EAGAIN || errno == EACCES)
    return {
      errc::busy, "pool {}: {} has it open; stop that process, or use its service", path,
      io::who_locks(file)};
  return status_from_errno(errno, "locking pool " + path);
}

} // namespace

std::uint64_t bytes_in_memory(const std::string& path, std::uint64_t new_bytes) {
  struct stat file {};
  auto there = ::stat(path.c_str(), &file) == 0;
  std::error_code ignored;
  auto directory = std::filesystem::absolute(path, ignored).parent_path();
  struct statfs system {};
  if (
    (there && !S_ISREG(file.st_mode)) ||
    ::statfs(there ? path.c_str() : directory.c_str(), &system) != 0 || !is_in_memory(system))
    return 0;
  return there ? static_cast<std::uint64_t>(file.st_size) : new_bytes;
}

result<pool_file> open_pool_file(const std::string& path, pool_medium wanted) {
  auto file = io::open_file(path, O_RDWR);
  if (!file && file.error().code() == errc::not_found)
    return fail(
      errc::not_found,
      "pool {}: there is nothing; is its file system mounted? `millrace pool create {} --size "
      "SIZE` makes a new one",
      path, path);
  if (!file)
    return fail(file.error());
  struct stat info {};
  if (::fstat(file->get(), &info) != 0)
    return fail(status_from_errno(errno, "examining " + path));
  pool_file found;
  found.path = path;
  auto device = device_of(info);
  found.device = device.has_value();
  if (!found.device && !S_ISREG(info.st_mode))
    return fail(
      errc::invalid_argument, "pool {}: neither a file nor a devdax device; name one of those",
      path);
  if (auto bad = lock_file(*file, path); !bad.ok())
    return fail(std::move(bad));
  found.size_bytes = device ? device->size_bytes : static_cast<std::uint64_t>(info.st_size);
  auto real = find_medium(file->get(), found.device);
  if (wanted == pool_medium::dax && real != pool_medium::dax)
    return fail(
      errc::invalid_argument, "pool {}: configured as dax, but it cannot be mapped with MAP_SYNC",
      path);
  found.medium = wanted == pool_medium::automatic ? real : wanted;
  found.file = std::move(*file);
  return found;
}

status fill_holes(const pool_file& file) {
  struct stat info {};
  if (file.device || ::fstat(file.file.get(), &info) != 0)
    return {};
  auto taken = static_cast<std::uint64_t>(info.st_blocks) * 512;
  // File systems that compress take less, and cannot keep space.
  if (
    taken >= file.size_bytes ||
    ::fallocate(file.file.get(), 0, 0, static_cast<off_t>(file.size_bytes)) == 0 || errno != ENOSPC)
    return {};
  return {
    errc::no_space,
    "pool {}: it has holes ({} of {} bytes are on the disk), and the file system has no space for "
    "them; free some there",
    file.path, taken, file.size_bytes};
}

status check_root(const pool_root& root, const std::string& path, std::uint64_t file_bytes) {
  if (root.magic != pool_root::magic_value)
    return damaged_pool(path, "its root is none of Millrace's");
  if (root.format_version != pool_format_version)
    return {
      errc::unsupported_version,
      "pool {}: format version {}, this build knows {}; use the release that wrote it, or dump its "
      "checkpoints with that and load the files into a new pool",
      path, root.format_version, pool_format_version};
  if (root.checksum != checksum_of(root) || root.header_bytes != sizeof(pool_root))
    return damaged_pool(path, "the checksum of its root does not match");
  if ((root.features & ~features_known) != 0)
    return {
      errc::unsupported_version,
      "pool {}: uses features this build does not know; use the release that wrote it", path};
  if (root.size_bytes > file_bytes)
    return {
      errc::corrupt_data,
      "pool {}: truncated: {} bytes when it was made, {} now; {}",
      path,
      root.size_bytes,
      file_bytes,
      how_to_restore};
  return {};
}

file_image::~file_image() {
  if (!bytes_.empty())
    ::munmap(bytes_.data(), bytes_.size());
}

result<file_image> file_image::map(const pool_file& file, image_access access) {
  file_image image;
  if (file.size_bytes == 0)
    return image;
  auto p = ::mmap(
    nullptr, file.size_bytes,
    access == image_access::read_only ? PROT_READ : PROT_READ | PROT_WRITE,
    (access == image_access::own_copy ? MAP_PRIVATE : MAP_SHARED) | MAP_NORESERVE, file.file.get(),
    0);
  if (p == MAP_FAILED)
    return fail(status_from_errno(errno, "mapping pool " + file.path));
  image.bytes_ = {static_cast<std::byte*>(p), file.size_bytes};
  return image;
}

status damaged_pool(const std::string& path, const std::string& what) {
  return {errc::corrupt_data, "pool {}: damaged: {}; {}", path, what, how_to_restore};
}

result<pool_descriptor> read_descriptor(const pool_file& file, std::span<const std::byte> bytes) {
  auto& path = file.path;
  auto not_ours = [&](const std::string& what) {
    return fail(
      errc::invalid_argument, "pool {}: {}; name the path of a pool, or one where nothing is", path,
      what);
  };
  foreign_header header{};
  const foreign_header blank{};
  pool_descriptor descriptor;
  if (bytes.size() < heap_at)
    return not_ours(
      fmt::format("no pool of Millrace, or one of which only {} bytes are left", bytes.size()));
  std::memcpy(&header, bytes.data(), sizeof header);
  std::memcpy(&descriptor, bytes.data() + descriptor_at, sizeof descriptor);
  if (file.device && std::memcmp(&header, &blank, sizeof header) == 0)
    return fail(
      errc::not_found, "pool {}: no pool is on the device; make one with `millrace pool create`",
      path);
  if (std::memcmp(header.signature, "PMEMOBJ", 8) != 0)
    return not_ours("no pool of Millrace (no libpmemobj signature)");
  if (header.major != pmemobj_major)
    return fail(
      errc::unsupported_version, "pool {}: written by another format of libpmemobj, {}", path,
      header.major);
  if (std::strncmp(descriptor.layout, pool_layout, sizeof descriptor.layout) != 0)
    return not_ours("a pool of another program (another layout name)");
  return descriptor;
}

result<heap_words> check_headers(const pool_file& file) {
  auto& path = file.path;
  auto image = file_image::map(file, image_access::read_only);
  if (!image)
    return fail(image.error());
  auto bytes = image->bytes();
  auto descriptor = read_descriptor(file, bytes);
  if (!descriptor)
    return fail(descriptor.error());
  auto& d = *descriptor;
  if (d.lanes_offset != lanes_at || d.lanes != lane_count || d.heap_offset != heap_at)
    return fail(damaged_pool(path, "the description of its parts"));
  if (d.heap_size > file.size_bytes - heap_at)
    return fail(
      errc::corrupt_data, "pool {}: truncated: its heap ends at {}, the file at {}; {}", path,
      heap_at + d.heap_size, file.size_bytes, how_to_restore);
  if (
    d.root_size != sizeof(pool_root) || d.root_offset < heap_at ||
    d.root_offset > file.size_bytes - sizeof(pool_root))
    return fail(damaged_pool(path, "it has no root object"));
  pool_root root;
  std::memcpy(static_cast<void*>(&root), bytes.data() + d.root_offset, sizeof root);
  if (auto bad = check_root(root, path, file.size_bytes); !bad.ok())
    return fail(std::move(bad));
  if (root.size_bytes != heap_at + d.heap_size)
    return fail(damaged_pool(path, "the size of its heap"));
  auto checked = check_heap(bytes, d.heap_size, d.root_offset);
  if (!checked)
    return fail(damaged_pool(path, checked.error().detail()));
  return checked;
}

namespace {

status write_root(const heap& h, std::uint64_t size_bytes) {
  pool_root root;
  root.header_bytes = sizeof root;
  random_bytes(&root.uuid, sizeof root.uuid);
  random_bytes(&root.id, sizeof root.id);
  root.created_ns = wall_clock_ns();
  root.size_bytes = size_bytes;
  root.checksum = checksum_of(root);
  root.table.check = word_check(root.id, word_kind::table, 0, 0);
  root.last_version.check = word_check(root.id, word_kind::version, 0, 0);
  auto place = h.root(true);
  if (!place)
    return {errc::no_space, "no room for the root object: {}", pmemobj_reason()};
  // The pool is not open yet: whatever its medium, the kernel makes it durable at the end.
  persistence persist{write_back::cache_lines};
  persist.store(place, &root, sizeof root);
  return persist.persist(place, sizeof root);
}

status sync_file(const std::string& path) {
  auto file = io::open_file(path, O_RDWR);
  if (!file)
    return file.error();
  return ::fsync(file->get()) == 0 ? status{} : status_from_errno(errno, "syncing " + path);
}

status make_pool_at(
  const std::string& path, std::uint64_t size_bytes, std::uint64_t recorded_bytes) {
  auto made = heap::create(path, size_bytes);
  if (!made)
    return made.error();
  return write_root(**made, recorded_bytes);
}

status check_medium(const std::string& path, pool_medium expected, pool_medium found) {
  if (expected == pool_medium::automatic || expected == found)
    return {};
  return {
    errc::invalid_argument,
    "pool {}: the medium {} is configured, but the path has {}; name another path or medium", path,
    to_string(expected), to_string(found)};
}

// Checks the medium of an unfinished file that is to get this path.
status check_medium_of_file(
  const std::string& unfinished, const std::string& path, pool_medium expected) {
  auto file = io::open_file(unfinished, O_RDWR);
  return file ? check_medium(path, expected, find_medium(file->get(), false)) : file.error();
}

constexpr char creating[] = ".creating-";

// Removes the files of processes that were killed while they made a pool here.
void sweep_unfinished(const std::filesystem::path& path) {
  auto prefix = path.filename().string() + creating;
  std::error_code ignored;
  for (auto& entry : std::filesystem::directory_iterator{path.parent_path(), ignored}) {
    auto name = entry.path().filename().string();
    if (!name.starts_with(prefix))
      continue;
    auto pid = std::strtol(name.c_str() + prefix.size(), nullptr, 10);
    if (pid <= 0 || ::kill(static_cast<pid_t>(pid), 0) == 0 || errno != ESRCH)
      continue;
    // libpmemobj holds this lock while it makes a pool: its process may be invisible from here.
    auto file = io::open_file(entry.path().string(), O_RDWR);
    if (file && ::flock(file->get(), LOCK_EX | LOCK_NB) == 0)
      std::filesystem::remove(entry.path(), ignored);
  }
}

// Makes the pool under another name and links it when it is complete, so that no crash leaves half
// a pool.
status make_pool_file(const std::string& path, std::uint64_t size_bytes, pool_medium expected) {
  auto unfinished = path + creating + std::to_string(::getpid());
  sweep_unfinished(std::filesystem::absolute(path));
  ::unlink(unfinished.c_str());
  auto outcome = make_pool_at(unfinished, size_bytes, size_bytes);
  if (outcome.ok())
    outcome = check_medium_of_file(unfinished, path, expected);
  MILLRACE_KILL_POINT("pmem.create.before_link");
  if (outcome.ok())
    outcome = sync_file(unfinished);
  if (outcome.ok() && ::link(unfinished.c_str(), path.c_str()) != 0)
    outcome = status_from_errno(errno, "making pool " + path);
  ::unlink(unfinished.c_str());
  auto directory = std::filesystem::absolute(path).parent_path().string();
  return outcome.ok() ? io::sync_directory(directory) : outcome;
}

} // namespace

status make_pool(const std::string& path, std::uint64_t size_bytes, pool_medium expected) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) {
    auto device = device_of(info);
    if (!device)
      return {
        errc::already_exists, "pool {}: something is there already; remove it first if it may go",
        path};
    if (size_bytes != 0)
      return {
        errc::invalid_argument, "pool {}: a device gives its size itself; leave it out", path};
    if (auto bad = check_medium(path, expected, pool_medium::dax); !bad.ok())
      return bad;
    return make_pool_at(path, 0, device->size_bytes);
  }
  if (size_bytes < pool_bytes_min)
    return {
      errc::invalid_argument, "pool {}: {}; the least size is {} bytes", path,
      size_bytes == 0 ? "no size is given" : fmt::format("it would have {} bytes", size_bytes),
      pool_bytes_min};
  return make_pool_file(path, file_bytes_of(size_bytes), expected);
}

std::string medium_note(pool_medium medium) {
  switch (medium) {
  case pool_medium::dax:
    return "persistent memory: versions survive kill -9 and power loss; cache lines are written "
           "back";
  case pool_medium::memory:
    return "main memory in place of persistent memory: versions survive kill -9, not the machine";
  case pool_medium::file:
    return "a file behind the kernel: versions survive kill -9 and power loss";
  case pool_medium::automatic:
    break;
  }
  return "not found out yet";
}

bool knows_direct_io(const pool_file& file) {
  auto direct = io::open_file(file.path, O_RDWR | O_DIRECT);
  if (!direct)
    return false;
  std::unique_ptr<void, decltype(&std::free)> page{
    std::aligned_alloc(io::direct_io_bytes, io::direct_io_bytes), &std::free};
  return io::read_all(*direct, page.get(), io::direct_io_bytes, 0, file.path).ok();
}

} // namespace millrace::storage::pmem
