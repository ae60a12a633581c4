// A provider that keeps its models and checkpoints in a pool. Opened by a node.
#pragma once

#include <millrace/storage/bucket_kind.hpp>
#include <millrace/storage/pmem/pool.hpp>

namespace millrace::storage {

/// When a provider reclaims space on its own.
enum class repack_mode : std::uint8_t { off, when_low };

struct pmem_options {
  pool_options pool = [] {
    pool_options p;
    p.capacity_bytes = 1u << 30;
    p.create_if_missing = true;
    return p;
  }();
  repack_mode repack = repack_mode::off;
  flush::step_flusher_options flush; // `flush.directory` empty: steps are not flushed
};

/// Staging memory is used piece by piece, and only where the pool cannot be mapped. A pool on tmpfs
/// takes memory of its own.
config::memory_needs needs_of(const pmem_options& options);

/// Errors: as `open_pool`.
result<opened_bucket> open_pmem_bucket(
  pmem_options options, std::shared_ptr<memory_source> staging);

/// Salvages pools. `millrace pool check` verifies them.
extern const storage_at_rest pool_at_rest;

} // namespace millrace::storage

namespace millrace::config {
template <>
key_table<storage::pmem_options> keys_of();
}
