// Calls in place of the C library's. They note each one that changes files below a directory, or
// makes them durable. As a library that is loaded before the C library (LD_PRELOAD), it writes what
// happens below MILLRACE_DISK_ROOT to MILLRACE_DISK_LOG; the root is empty when the process starts.
// A program that this is linked into calls `listen_to` instead.
//
// One lock is held around each call, so that the log has the order of the effects.
#include <millrace/tests/support/disk/recorder.hpp>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

using namespace millrace::testing::disk;

namespace {

constexpr std::size_t page_bytes = 4096;

/// The call of this name behind ours.
template <class Call>
Call* next_call(const char* name) {
  return reinterpret_cast<Call*>(::dlsym(RTLD_NEXT, name));
}

struct open_file {
  std::uint64_t id = 0; // 0: a directory
  std::string path;     // of a directory
};

// Stores to mapped memory are no calls: they are seen by comparing.
struct mapping {
  std::size_t size_bytes = 0;
  std::uint64_t id = 0;
  std::uint64_t offset = 0;
  std::string noted;
};

class recorder {
public:
  static recorder& get() {
    static auto* one = new recorder; // calls come until the process is gone
    return *one;
  }

  std::unique_lock<std::recursive_mutex> lock() {
    return std::unique_lock<std::recursive_mutex>{mutex_};
  }

  bool on() const { return log_ >= 0 || listener_; }
  void listen(const std::string& root, event_listener listener) {
    root_ = root;
    listener_ = std::move(listener);
    files_.clear();
    ids_.clear();
    mappings_.clear();
  }
  bool covers(const std::string& path) const {
    return path == root_ || path.starts_with(root_ + "/");
  }

  /// The path that a call with a directory's descriptor means; empty when it is outside of the
  /// root.
  std::string path_of(int directory, const char* path) const {
    if (!on() || path == nullptr)
      return {};
    std::string full = path;
    if (!full.starts_with('/') && directory != AT_FDCWD) {
      char at[4096];
      auto link = "/proc/self/fd/" + std::to_string(directory);
      auto length = ::readlink(link.c_str(), at, sizeof at);
      if (length <= 0)
        return {};
      full = std::string{at, static_cast<std::size_t>(length)} + "/" + full;
    }
    full = std::filesystem::path{full}.lexically_normal().string();
    return covers(full) ? full : std::string{};
  }

  void note(
    event_kind kind, std::uint64_t id, const std::string& path = {}, const std::string& other = {},
    std::uint64_t offset = 0, const void* data = nullptr, std::uint64_t size_bytes = 0) const {
    event_head head{
      kind,
      static_cast<std::uint32_t>(path.size()),
      static_cast<std::uint32_t>(other.size()),
      id,
      offset,
      size_bytes};
    if (listener_)
      return listener_(
        {head, path, other,
         has_data(kind) ? std::string{static_cast<const char*>(data), size_bytes} : std::string{}});
    put(&head, sizeof head);
    put(path.data(), path.size());
    put(other.data(), other.size());
    if (has_data(kind))
      put(data, size_bytes);
  }

  void opened(int fd, const std::string& path, bool existed, int flags) {
    struct stat about {};
    if (::fstat(fd, &about) != 0)
      return;
    if (S_ISDIR(about.st_mode)) {
      files_[fd] = {0, path};
      return;
    }
    auto& id = ids_[{about.st_dev, about.st_ino}];
    if (!existed) {
      id = ++last_id_;
      note(event_kind::file_made, id, path);
    } else if (id == 0) {
      note(event_kind::unknown, 0, "opening " + path + ", which was there before");
    } else if ((flags & O_TRUNC) != 0) {
      note(event_kind::resized, id);
    }
    files_[fd] = {id, {}};
  }
  void closed(int fd) { files_.erase(fd); }

  const open_file* at(int fd) const {
    auto found = files_.find(fd);
    return found == files_.end() ? nullptr : &found->second;
  }
  std::uint64_t file_at(int fd) const {
    auto found = at(fd);
    return found != nullptr ? found->id : 0;
  }
  std::uint64_t id_of(const std::string& path) const {
    struct stat about {};
    if (::lstat(path.c_str(), &about) != 0)
      return 0;
    auto found = ids_.find({about.st_dev, about.st_ino});
    return found == ids_.end() ? 0 : found->second;
  }

  void mapped(void* at, std::size_t size_bytes, std::uint64_t id, std::uint64_t offset) {
    auto data = static_cast<char*>(at);
    mappings_[data] = {size_bytes, id, offset, std::string(data, size_bytes)};
  }
  void unmapped(void* at, std::size_t size_bytes) {
    auto first = mappings_.lower_bound(static_cast<char*>(at));
    auto last = mappings_.lower_bound(static_cast<char*>(at) + size_bytes);
    for (auto one = first; one != last; ++one)
      note_stores(one->first, one->second);
    mappings_.erase(first, last);
  }
  /// Before a file becomes durable: what was stored to its mappings is written as well.
  void note_stores(std::uint64_t id) {
    for (auto& [data, m] : mappings_)
      if (m.id == id)
        note_stores(data, m);
  }
  void written_back(void* from, std::size_t size_bytes) {
    // The kernel writes whole pages.
    auto first_page = reinterpret_cast<std::uintptr_t>(from) / page_bytes * page_bytes;
    auto end_page = (reinterpret_cast<std::uintptr_t>(from) + size_bytes + page_bytes - 1) /
      page_bytes * page_bytes;
    auto begin = reinterpret_cast<char*>(first_page), end = reinterpret_cast<char*>(end_page);
    for (auto& [start, m] : mappings_) {
      auto first = std::max(begin, start), last = std::min(end, start + m.size_bytes);
      if (first >= last)
        continue;
      // The kernel may write back any other page at any time, too.
      note_stores(start, m);
      note(
        event_kind::written_back, m.id, {}, {},
        m.offset + static_cast<std::uint64_t>(first - start), first,
        static_cast<std::uint64_t>(last - first));
    }
  }

private:
  recorder() {
    auto log = std::getenv("MILLRACE_DISK_LOG"), root = std::getenv("MILLRACE_DISK_ROOT");
    if (log == nullptr || root == nullptr)
      return;
    root_ = root;
    log_ = static_cast<int>(
      ::syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  }

  void note_stores(const char* data, mapping& m) {
    for (std::size_t at = 0; at < m.size_bytes; at += page_bytes) {
      auto part = std::min(page_bytes, m.size_bytes - at);
      if (std::memcmp(data + at, m.noted.data() + at, part) == 0)
        continue;
      std::memcpy(m.noted.data() + at, data + at, part);
      note(event_kind::written, m.id, {}, {}, m.offset + at, m.noted.data() + at, part);
    }
  }

  void put(const void* data, std::uint64_t size_bytes) const {
    auto at = static_cast<const char*>(data);
    while (size_bytes > 0) {
      auto n = ::syscall(SYS_write, log_, at, size_bytes);
      if (n <= 0)
        std::abort();
      at += n, size_bytes -= static_cast<std::uint64_t>(n);
    }
  }

  std::recursive_mutex mutex_;
  std::string root_;
  int log_ = -1;
  event_listener listener_;
  std::map<int, open_file> files_;
  std::map<std::pair<dev_t, ino_t>, std::uint64_t> ids_;
  std::map<char*, mapping> mappings_;
  std::uint64_t last_id_ = 0;
};

int open_and_note(const char* name, int directory, const char* path, int flags, mode_t mode) {
  auto real = next_call<int(int, const char*, int, ...)>(name);
  auto& r = recorder::get();
  auto held = r.lock();
  auto full = r.path_of(directory, path);
  struct stat about {};
  auto existed = !full.empty() && ::lstat(full.c_str(), &about) == 0;
  auto fd = real(directory, path, flags, mode);
  if (fd >= 0 && !full.empty())
    r.opened(fd, full, existed, flags);
  return fd;
}

mode_t mode_in(int flags, va_list more) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
}

/// Data of a call at a place; where the file's own position counts, `offset` is negative.
ssize_t noted(recorder& r, int fd, const void* data, ssize_t n, off_t offset) {
  if (n <= 0 || !r.on())
    return n;
  auto size = static_cast<std::uint64_t>(n);
  if (auto id = r.file_at(fd)) {
    if (offset < 0)
      offset = ::lseek(fd, 0, SEEK_CUR) - n;
    r.note(event_kind::written, id, {}, {}, static_cast<std::uint64_t>(offset), data, size);
  } else if (fd == STDOUT_FILENO) {
    r.note(event_kind::said, 0, {}, {}, 0, data, size);
  }
  return n;
}

std::vector<char> joined(const iovec* parts, int count) {
  std::vector<char> all;
  for (auto& part : std::vector<iovec>(parts, parts + count)) {
    auto data = static_cast<char*>(part.iov_base);
    all.insert(all.end(), data, data + part.iov_len);
  }
  return all;
}

int resize_and_note(int fd, off_t size, int outcome) {
  auto& r = recorder::get();
  if (auto id = r.file_at(fd); id != 0 && outcome == 0)
    r.note(event_kind::resized, id, {}, {}, static_cast<std::uint64_t>(size));
  return outcome;
}

int allocation_noted(int fd, int mode, off_t offset, off_t length, int outcome) {
  auto& r = recorder::get();
  auto id = r.file_at(fd);
  auto at = static_cast<std::uint64_t>(offset), size = static_cast<std::uint64_t>(length);
  if (id == 0 || outcome != 0)
    return outcome;
  if (mode == 0)
    r.note(event_kind::allocated, id, {}, {}, at + size);
  else if (mode == (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE))
    r.note(event_kind::zeroed, id, {}, {}, at, nullptr, size);
  else if (mode != FALLOC_FL_KEEP_SIZE)
    r.note(event_kind::unknown, id, "fallocate");
  return outcome;
}

int sync_and_note(const char* name, int fd) {
  auto& r = recorder::get();
  auto held = r.lock();
  auto outcome = next_call<int(int)>(name)(fd);
  if (auto file = r.at(fd); file != nullptr && outcome == 0) {
    if (file->id != 0) {
      r.note_stores(file->id);
      r.note(event_kind::synced, file->id);
    } else {
      r.note(event_kind::names_synced, 0, file->path);
    }
  }
  return outcome;
}

/// Renames and links, when both names are below the root.
template <class Call>
int name_and_note(
  event_kind kind, int from_directory, const char* from, int to_directory, const char* to,
  Call call) {
  auto& r = recorder::get();
  auto held = r.lock();
  auto source = r.path_of(from_directory, from), target = r.path_of(to_directory, to);
  auto id = source.empty() ? 0 : r.id_of(source);
  auto outcome = call();
  if (outcome != 0 || (source.empty() && target.empty()))
    return outcome;
  if (id == 0 || source.empty() || target.empty())
    r.note(event_kind::unknown, 0, "renaming " + source + " to " + target);
  else
    r.note(kind, id, target, source);
  return outcome;
}

template <class Call>
int path_noted(event_kind kind, int directory, const char* path, Call call) {
  auto& r = recorder::get();
  auto held = r.lock();
  auto full = r.path_of(directory, path);
  auto outcome = call();
  if (outcome == 0 && !full.empty())
    r.note(kind, 0, full);
  return outcome;
}

void* map_and_note(
  const char* name, void* at, std::size_t size, int protection, int flags, int fd, off_t offset) {
  auto& r = recorder::get();
  auto held = r.lock();
  auto p = next_call<void*(void*, std::size_t, int, int, int, off_t)>(name)(
    at, size, protection, flags, fd, offset);
  auto shared = (flags & MAP_TYPE) == MAP_SHARED || (flags & MAP_TYPE) == MAP_SHARED_VALIDATE;
  if (auto id = r.file_at(fd);
      p != MAP_FAILED && fd >= 0 && id != 0 && shared && (protection & PROT_WRITE) != 0)
    r.mapped(p, size, id, static_cast<std::uint64_t>(offset));
  return p;
}

} // namespace

void millrace::testing::disk::listen_to(const std::string& root, event_listener listener) {
  auto& r = recorder::get();
  auto held = r.lock();
  r.listen(root, std::move(listener));
}

// The C library declares some of these with exceptions that its own headers differ in.
extern "C" {

#define MILLRACE_OPEN(name)                                                                        \
  int name(const char* path, int flags, ...) {                                                     \
    va_list more;                                                                                  \
    va_start(more, flags);                                                                         \
    auto mode = mode_in(flags, more);                                                              \
    va_end(more);                                                                                  \
    return open_and_note("openat", AT_FDCWD, path, flags, mode);                                   \
  }
MILLRACE_OPEN(open)
MILLRACE_OPEN(open64)
#define MILLRACE_OPENAT(name)                                                                      \
  int name(int directory, const char* path, int flags, ...) {                                      \
    va_list more;                                                                                  \
    va_start(more, flags);                                                                         \
    auto mode = mode_in(flags, more);                                                              \
    va_end(more);                                                                                  \
    return open_and_note("openat", directory, path, flags, mode);                                  \
  }
MILLRACE_OPENAT(openat)
MILLRACE_OPENAT(openat64)
int __open_2(const char* path, int flags) {
  return open_and_note("openat", AT_FDCWD, path, flags, 0);
}
int __open64_2(const char* path, int flags) {
  return open_and_note("openat", AT_FDCWD, path, flags, 0);
}

int close(int fd) {
  auto& r = recorder::get();
  auto held = r.lock();
  r.closed(fd);
  return next_call<int(int)>("close")(fd);
}

ssize_t write(int fd, const void* data, size_t size) {
  auto& r = recorder::get();
  auto held = r.lock();
  auto n = next_call<ssize_t(int, const void*, size_t)>("write")(fd, data, size);
  return noted(r, fd, data, n, -1);
}
ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  auto& r = recorder::get();
  auto held = r.lock();
  auto n = next_call<ssize_t(int, const void*, size_t, off_t)>("pwrite64")(fd, data, size, offset);
  return noted(r, fd, data, n, offset);
}
ssize_t pwrite64(int fd, const void* data, size_t size, off_t offset) {
  return pwrite(fd, data, size, offset);
}
ssize_t writev(int fd, const iovec* parts, int count) {
  auto& r = recorder::get();
  auto held = r.lock();
  auto n = next_call<ssize_t(int, const iovec*, int)>("writev")(fd, parts, count);
  return noted(r, fd, joined(parts, count).data(), n, -1);
}
ssize_t pwritev(int fd, const iovec* parts, int count, off_t offset) {
  auto& r = recorder::get();
  auto held = r.lock();
  auto n = next_call<ssize_t(int, const iovec*, int, off_t)>("pwritev64")(fd, parts, count, offset);
  return noted(r, fd, joined(parts, count).data(), n, offset);
}
ssize_t pwritev64(int fd, const iovec* parts, int count, off_t offset) {
  return pwritev(fd, parts, count, offset);
}

int ftruncate(int fd, off_t size) noexcept {
  auto held = recorder::get().lock();
  return resize_and_note(fd, size, next_call<int(int, off_t)>("ftruncate64")(fd, size));
}
int ftruncate64(int fd, off_t size) noexcept { return ftruncate(fd, size); }
int fallocate(int fd, int mode, off_t offset, off_t length) {
  auto held = recorder::get().lock();
  auto real = next_call<int(int, int, off_t, off_t)>("fallocate64");
  return allocation_noted(fd, mode, offset, length, real(fd, mode, offset, length));
}
int fallocate64(int fd, int mode, off_t offset, off_t length) {
  return fallocate(fd, mode, offset, length);
}
int posix_fallocate(int fd, off_t offset, off_t length) {
  auto held = recorder::get().lock();
  auto real = next_call<int(int, off_t, off_t)>("posix_fallocate64");
  return allocation_noted(fd, 0, offset, length, real(fd, offset, length));
}
int posix_fallocate64(int fd, off_t offset, off_t length) {
  return posix_fallocate(fd, offset, length);
}

int fsync(int fd) { return sync_and_note("fsync", fd); }
int fdatasync(int fd) { return sync_and_note("fdatasync", fd); }

int rename(const char* from, const char* to) noexcept {
  return name_and_note(event_kind::renamed, AT_FDCWD, from, AT_FDCWD, to, [&] {
    return next_call<int(const char*, const char*)>("rename")(from, to);
  });
}
int renameat(int from_at, const char* from, int to_at, const char* to) noexcept {
  return name_and_note(event_kind::renamed, from_at, from, to_at, to, [&] {
    return next_call<int(int, const char*, int, const char*)>("renameat")(from_at, from, to_at, to);
  });
}
int renameat2(int from_at, const char* from, int to_at, const char* to, unsigned flags) noexcept {
  return name_and_note(event_kind::renamed, from_at, from, to_at, to, [&] {
    return next_call<int(int, const char*, int, const char*, unsigned)>("renameat2")(
      from_at, from, to_at, to, flags);
  });
}
int link(const char* from, const char* to) noexcept {
  return name_and_note(event_kind::linked, AT_FDCWD, from, AT_FDCWD, to, [&] {
    return next_call<int(const char*, const char*)>("link")(from, to);
  });
}

int mkdir(const char* path, mode_t mode) noexcept {
  return path_noted(event_kind::directory_made, AT_FDCWD, path, [&] {
    return next_call<int(const char*, mode_t)>("mkdir")(path, mode);
  });
}
int mkdirat(int at, const char* path, mode_t mode) noexcept {
  return path_noted(event_kind::directory_made, at, path, [&] {
    return next_call<int(int, const char*, mode_t)>("mkdirat")(at, path, mode);
  });
}
int unlink(const char* path) noexcept {
  return path_noted(event_kind::removed, AT_FDCWD, path, [&] {
    return next_call<int(const char*)>("unlink")(path);
  });
}
int unlinkat(int at, const char* path, int flags) noexcept {
  return path_noted(event_kind::removed, at, path, [&] {
    return next_call<int(int, const char*, int)>("unlinkat")(at, path, flags);
  });
}
int remove(const char* path) noexcept {
  return path_noted(event_kind::removed, AT_FDCWD, path, [&] {
    return next_call<int(const char*)>("remove")(path);
  });
}
int rmdir(const char* path) noexcept {
  return path_noted(event_kind::removed, AT_FDCWD, path, [&] {
    return next_call<int(const char*)>("rmdir")(path);
  });
}

void* mmap(void* at, size_t size, int protection, int flags, int fd, off_t offset) noexcept {
  return map_and_note("mmap64", at, size, protection, flags, fd, offset);
}
void* mmap64(void* at, size_t size, int protection, int flags, int fd, off_t offset) noexcept {
  return map_and_note("mmap64", at, size, protection, flags, fd, offset);
}
int munmap(void* at, size_t size) noexcept {
  auto& r = recorder::get();
  auto held = r.lock();
  r.unmapped(at, size);
  return next_call<int(void*, size_t)>("munmap")(at, size);
}
int msync(void* at, size_t size, int flags) {
  auto& r = recorder::get();
  auto held = r.lock();
  auto outcome = next_call<int(void*, size_t, int)>("msync")(at, size, flags);
  if (outcome == 0 && (flags & MS_SYNC) != 0)
    r.written_back(at, size);
  return outcome;
}

} // extern "C"
