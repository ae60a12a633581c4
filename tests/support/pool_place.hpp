// Places for pools on the media a test machine has. Used by tests of storage/pmem.
#pragma once

#include <millrace/storage/pmem/pool.hpp>
#include <millrace/tests/support/heap_memory_source.hpp>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <ostream>
#include <string>

namespace millrace::testing {

/// The ways data takes that a machine without persistent memory can test.
enum class pool_way { memory, mapped_file, direct_file };

inline std::ostream& operator<<(std::ostream& out, pool_way way) {
  static constexpr const char* names[] = {"memory", "mapped file", "direct I/O"};
  return out << names[static_cast<int>(way)];
}

/// A directory of one test on the medium of the way, and options for a pool in it.
class pool_place {
public:
  explicit pool_place(pool_way way) : way_(way) {
    std::error_code why;
    auto shared = std::filesystem::is_directory("/dev/shm", why) && way == pool_way::memory;
    auto parent = shared ? std::filesystem::path{"/dev/shm"} : std::filesystem::current_path();
    auto pattern = (parent / "pool-XXXXXX").string();
    directory_ = ::mkdtemp(pattern.data());
  }
  pool_place(const pool_place&) = delete;
  pool_place& operator=(const pool_place&) = delete;
  ~pool_place() {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }

  std::string path() const { return directory_ + "/pool"; }

  storage::pool_options options(std::uint64_t capacity_bytes = 64u << 20) const {
    storage::pool_options chosen;
    chosen.path = path();
    chosen.capacity_bytes = capacity_bytes;
    chosen.create_if_missing = true;
    chosen.window_bytes = 1u << 20;
    chosen.medium =
      way_ == pool_way::memory ? storage::pool_medium::memory : storage::pool_medium::file;
    if (way_ == pool_way::mapped_file)
      chosen.data_path = storage::file_path::mapped;
    if (way_ == pool_way::direct_file)
      chosen.staging = staging_;
    return chosen;
  }

private:
  pool_way way_;
  std::string directory_;
  std::shared_ptr<memory_source> staging_ = std::make_shared<heap_memory_source>(16u << 20);
};

} // namespace millrace::testing
