// A file system of its own for one test, so that the test can fill it to the last byte.
// Used by storage and crash tests.
#pragma once

#include <millrace/tests/support/scratch_directory.hpp>

#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <string>
#include <vector>

namespace millrace::testing {

/// On tmpfs space is taken and returned at once. ext4 has a journal, delayed allocation and direct
/// I/O.
enum class disk_kind : std::uint8_t { tmpfs, ext4 };

inline std::ostream& operator<<(std::ostream& out, disk_kind kind) {
  return out << (kind == disk_kind::tmpfs ? "tmpfs" : "ext4");
}

/// For data-driven tests.
inline constexpr disk_kind all_disk_kinds[] = {disk_kind::tmpfs, disk_kind::ext4};

/// A tmpfs, or an ext4 in a file. Only root can mount one, and ext4 needs mkfs.ext4 and loop
/// devices.
class small_disk {
public:
  explicit small_disk(std::uint64_t size_bytes, disk_kind kind = disk_kind::tmpfs) {
    auto size = "size=" + std::to_string(size_bytes);
    mounted_ = kind == disk_kind::ext4
      ? mount_ext4(size_bytes)
      : ::mount("millrace-test", place_.path().c_str(), "tmpfs", 0, size.c_str()) == 0;
  }
  small_disk(const small_disk&) = delete;
  small_disk& operator=(const small_disk&) = delete;
  ~small_disk() {
    if (mounted_)
      ::umount2(place_.path().c_str(), MNT_DETACH);
  }

  /// False: the test must skip.
  bool mounted() const noexcept { return mounted_; }
  /// Returns what the test then says.
  static std::string missing(disk_kind kind) {
    return std::string{"a full file system: needs root and mount"} +
      (kind == disk_kind::ext4 ? ", mkfs.ext4 and loop devices" : "");
  }
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

  bool mount_ext4(std::uint64_t size_bytes) const {
    constexpr std::uint64_t own_bytes = 16u << 20; // journal and tables
    auto image = image_.path() + "/ext4";
    if (!std::ofstream{image})
      return false;
    std::filesystem::resize_file(image, size_bytes + own_bytes);
    auto command = "{ PATH=$PATH:/usr/sbin:/sbin; mkfs.ext4 -q -F -m 0 " + image +
      " && mount -o loop " + image + " " + place_.path() + "; } >/dev/null 2>&1";
    return std::system(command.c_str()) == 0 &&
      std::filesystem::remove(place_.path() + "/lost+found");
  }

  scratch_directory image_; // of ext4
  scratch_directory place_;
  bool mounted_ = false;
};

} // namespace millrace::testing
