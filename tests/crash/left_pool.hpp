// Where the pools of crash tests are, and what killed processes must leave of them. For parents.
#pragma once

#include "small_checkpoints.hpp"

#include <millrace/storage/pmem/pool.hpp>
#include <millrace/tests/support/held_completion.hpp>

#include <boost/test/unit_test.hpp>

#include <filesystem>
#include <memory>
#include <string>

namespace millrace::testing {

inline constexpr auto in_memory = "/dev/shm";
inline const auto on_disk = std::filesystem::temp_directory_path().string();

/// Nothing is wrong in a pool that no process has open.
inline void require_sound(const std::string& path, const std::string& when) {
  auto report = storage::check_pool(path, true);
  BOOST_REQUIRE_MESSAGE(report, when << ": " << why(report));
  for (auto& problem : report->problems)
    BOOST_ERROR(when << ": " << problem);
  BOOST_TEST(report->unreachable_bytes == 0u, when);
}

/// Opens a pool that a killed process has left: it is sound, and so is every version in it.
inline std::shared_ptr<storage::pool> open_sound(
  const storage::pool_options& options, const std::string& when) {
  require_sound(options.path, when);
  auto pool = storage::open_pool(options);
  BOOST_REQUIRE_MESSAGE(pool, when << ": " << why(pool));
  auto all = check_all_versions(*(*pool)->checkpoints());
  BOOST_CHECK_MESSAGE(all.ok(), when << ": " << all.to_string());
  return *pool;
}

} // namespace millrace::testing
