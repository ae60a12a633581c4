// Places for pools on the media of a test machine.
// Used by tests of storage/pmem.
#pragma once

#include <millrace/storage/pmem/pool.hpp>
#include <millrace/tests/support/heap_memory_source.hpp>

#include <boost/test/unit_test.hpp>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

namespace millrace::testing {

/// The data paths of a pool: three that every machine can test, and persistent memory where it
/// exists.
enum class pool_way { memory, mapped_file, direct_file, persistent_memory };

inline std::ostream& operator<<(std::ostream& out, pool_way way) {
  static constexpr const char* names[] = {
    "memory", "mapped file", "direct I/O", "persistent memory"};
  return out << names[static_cast<int>(way)];
}

/// Returns the directory or device that MILLRACE_TEST_PMEM names; empty if there is none.
inline std::string persistent_memory() {
  auto named = std::getenv("MILLRACE_TEST_PMEM");
  return named ? named : "";
}

/// Returns the data paths to test. With persistent memory, that one alone.
inline std::vector<pool_way> pool_ways() {
  if (!persistent_memory().empty())
    return {pool_way::persistent_memory};
  return {pool_way::memory, pool_way::mapped_file, pool_way::direct_file};
}

/// Returns the first of them. It fills slots in place, and the thread that stores lines writes them
/// back.
inline pool_way in_place_way() { return pool_ways().front(); }

/// Clears a device, so that it has no pool.
inline void wipe_device(const std::string& path) {
  constexpr std::size_t bytes = 2u << 20; // maps on devices of every alignment
  auto fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  auto* start = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  BOOST_REQUIRE_MESSAGE(start != MAP_FAILED, path << " cannot be mapped");
  std::memset(start, 0, bytes);
  ::munmap(start, bytes);
}

/// A directory or device for one test on the medium of the data path, with options for a pool
/// there.
class pool_place {
public:
  explicit pool_place(pool_way way) : way_(way) {
    if (way == pool_way::persistent_memory && !std::filesystem::is_directory(persistent_memory())) {
      device_ = persistent_memory();
      return;
    }
    auto pattern = (parent(way) / "pool-XXXXXX").string();
    directory_ = ::mkdtemp(pattern.data());
  }
  pool_place(const pool_place&) = delete;
  pool_place& operator=(const pool_place&) = delete;
  ~pool_place() {
    std::error_code ignored;
    if (!directory_.empty())
      std::filesystem::remove_all(directory_, ignored);
  }

  bool is_device() const { return !device_.empty(); }
  std::string path() const { return is_device() ? device_ : directory_ + "/pool"; }

  /// Makes a pool on a device, since opening never does that. Elsewhere opening makes the pool.
  void prepare() const {
    if (!is_device())
      return;
    wipe_device(device_);
    auto made = storage::create_pool(options());
    BOOST_REQUIRE_MESSAGE(made, (made ? "" : made.error().to_string()));
  }

  storage::pool_options options(std::uint64_t capacity_bytes = 64u << 20) const {
    storage::pool_options chosen;
    chosen.path = path();
    chosen.capacity_bytes = is_device() ? 0 : capacity_bytes;
    chosen.create_if_missing = true;
    chosen.window_bytes = 1u << 20;
    // Touching emulated persistent memory takes seconds.
    chosen.populate = way_ != pool_way::persistent_memory;
    chosen.medium = medium();
    if (way_ == pool_way::mapped_file)
      chosen.data_path = storage::file_path::mapped;
    if (way_ == pool_way::direct_file)
      chosen.staging = storage::lent_memory::pages;
    return chosen;
  }

private:
  static std::filesystem::path parent(pool_way way) {
    std::error_code why;
    if (way == pool_way::persistent_memory)
      return persistent_memory();
    if (way == pool_way::memory && std::filesystem::is_directory("/dev/shm", why))
      return "/dev/shm";
    return std::filesystem::current_path();
  }

  storage::pool_medium medium() const {
    switch (way_) {
    case pool_way::memory:
      return storage::pool_medium::memory;
    case pool_way::persistent_memory:
      return storage::pool_medium::dax;
    default:
      return storage::pool_medium::file;
    }
  }

  pool_way way_;
  std::string directory_;
  std::string device_;
};

} // namespace millrace::testing
