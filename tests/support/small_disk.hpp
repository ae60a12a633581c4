// A file system of its own for one test, so that the test can fill it to the last byte.
// Used by storage and crash tests.
#pragma once

#include <millrace/tests/support/scratch_directory.hpp>

#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace millrace::testing {

/// A tmpfs. Only root can mount one.
class small_disk {
public:
  explicit small_disk(std::uint64_t size_bytes) {
    auto size = "size=" + std::to_string(size_bytes);
    mounted_ = ::mount("millrace-test", place_.path().c_str(), "tmpfs", 0, size.c_str()) == 0;
  }
  small_disk(const small_disk&) = delete;
  small_disk& operator=(const small_disk&) = delete;
  ~small_disk() {
    if (mounted_)
      ::umount2(place_.path().c_str(), MNT_DETACH);
  }

  /// False: the test must skip.
  bool mounted() const noexcept { return mounted_; }
  std::string path() const { return place_.path(); }

  /// Takes every byte that is free, but leaves some.
  void fill(std::uint64_t but_bytes = 0) {
    auto fd = ::open(filler().c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    for (std::size_t size = 1u << 20; size > 0;) {
      std::vector<char> bytes(size, 'x');
      if (::write(fd, bytes.data(), size) <= 0)
        size /= 2;
    }
    auto size = ::lseek(fd, 0, SEEK_END);
    if (auto left = static_cast<::off_t>(but_bytes); left > 0 && size > left)
      static_cast<void>(::ftruncate(fd, size - left));
    ::close(fd);
  }
  void free() { std::filesystem::remove(filler()); }
  std::uint64_t free_bytes() const { return std::filesystem::space(path()).available; }

private:
  std::string filler() const { return path() + "/filler"; }

  scratch_directory place_;
  bool mounted_ = false;
};

} // namespace millrace::testing
