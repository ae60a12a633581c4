// A file or DAX device mapped whole and shared, as pools do it.
// Used by transport tests.
#pragma once

#include <millrace/core/assert.hpp>
#include <millrace/core/memory.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace millrace::testing {

/// Returns the places for shared files: on tmpfs and in `directory`; or only MILLRACE_TEST_MAPPING,
/// if set (a path for a new file, or a DAX device).
inline std::vector<std::string> shared_file_places(const std::string& directory) {
  if (auto* path = std::getenv("MILLRACE_TEST_MAPPING"))
    return {path};
  return {"/dev/shm/millrace-test-" + std::to_string(getpid()), directory + "/mapped"};
}

/// Makes a regular file and removes it at the end; a device is used from its first byte.
class shared_file {
public:
  shared_file(std::string path, std::uint64_t size_bytes) : path_(std::move(path)) {
    struct stat info {};
    is_device_ = stat(path_.c_str(), &info) == 0 && S_ISCHR(info.st_mode);
    mapping_.fd = open(path_.c_str(), is_device_ ? O_RDWR : O_RDWR | O_CREAT | O_EXCL, 0600);
    MILLRACE_ASSERT(mapping_.fd >= 0);
    auto size = static_cast<off_t>(size_bytes);
    MILLRACE_ASSERT(is_device_ || posix_fallocate(mapping_.fd, 0, size) == 0);
    mapping_.size_bytes = size_bytes;
    auto* data = map(MAP_SHARED_VALIDATE | MAP_SYNC);
    syncs_ = data != MAP_FAILED;
    if (!syncs_)
      data = map(MAP_SHARED);
    MILLRACE_ASSERT(data != MAP_FAILED);
    mapping_.data = static_cast<std::byte*>(data);
  }
  shared_file(const shared_file&) = delete;
  shared_file& operator=(const shared_file&) = delete;
  ~shared_file() {
    munmap(mapping_.data, mapping_.size_bytes);
    close(mapping_.fd);
    if (!is_device_)
      unlink(path_.c_str());
  }

  const std::string& path() const noexcept { return path_; }
  const file_mapping& mapping() const noexcept { return mapping_; }
  std::byte* data() const noexcept { return mapping_.data; }
  std::uint64_t size_bytes() const noexcept { return mapping_.size_bytes; }
  /// True on persistent memory: the mapping has MAP_SYNC.
  bool syncs() const noexcept { return syncs_; }

  /// Writes changed pages out. A device has none.
  bool sync() const noexcept { return is_device_ || msync(data(), size_bytes(), MS_SYNC) == 0; }

private:
  void* map(int flags) const {
    return mmap(nullptr, mapping_.size_bytes, PROT_READ | PROT_WRITE, flags, mapping_.fd, 0);
  }

  std::string path_;
  file_mapping mapping_;
  bool is_device_ = false;
  bool syncs_ = false;
};

} // namespace millrace::testing
