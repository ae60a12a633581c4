// A node in this process with one pool, for tests that save and restore.
#pragma once

#include <millrace/storage/pmem/pmem_kind.hpp>
#include <millrace/tests/runtime/one_node.hpp>

#include <string>

namespace millrace::testing {

inline config::settings with_pool(
  const std::string& socket_directory, const std::string& pool_directory) {
  config::provider_settings pool;
  pool.name = "pool";
  pool.bucket = "pmem";
  auto& options = pool.options.edit<storage::pmem_options>().pool;
  options.capacity_bytes = 128 << 20;
  options.path = pool_directory + "/p.pool";
  auto s = with_provider(socket_directory, pool);
  s.checkpoints.staging_piece_bytes = 1 << 20;
  s.checkpoints.staging_pieces = 4;
  return s;
}

/// A pool in memory is used in place.
struct one_pool : one_node {
  explicit one_pool(bool in_memory = true) {
    settings = with_pool(dir.path(), in_memory ? memory.path() : dir.path());
    start();
  }
};

} // namespace millrace::testing
