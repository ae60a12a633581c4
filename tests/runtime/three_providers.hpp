// A node with a provider of every kind, and a model for them. Used by tests of nodes that lose
// providers or their actors.
#pragma once

#include <millrace/config/settings.hpp>
#include <millrace/core/tensor_view.hpp>
#include <millrace/storage/memory/memory_options.hpp>
#include <millrace/storage/pmem/pmem_kind.hpp>
#include <millrace/storage/rocksdb/rocksdb_options.hpp>
#include <millrace/tests/support/scratch_directory.hpp>

#include <cstddef>
#include <vector>

namespace millrace::testing {

/// The files of the node `n0`, its settings, and a tensor. Each of the providers `fast` (memory),
/// `kept` (RocksDB) and `pool` (pmem) is the only one of its group, which has its name.
struct three_providers {
  scratch_directory dir;
  config::settings settings;
  std::vector<std::byte> bytes = std::vector<std::byte>(100'000, std::byte{7});

  three_providers() {
    constexpr std::uint64_t mib = 1u << 20;
    config::provider_settings fast, kept, pool;
    fast.options.edit<storage::memory_bucket_options>().capacity_bytes = 16 * mib;
    kept.bucket = "rocksdb";
    auto& on_disk = kept.options.edit<storage::rocksdb_bucket_options>();
    on_disk.path = dir.path() + "/kept";
    on_disk.capacity_bytes = 64 * mib;
    on_disk.window_bytes = mib;
    pool.bucket = "pmem";
    auto& in_pool = pool.options.edit<storage::pmem_options>().pool;
    in_pool.path = dir.path() + "/pool";
    in_pool.capacity_bytes = 32 * mib;
    fast.name = fast.group = "fast";
    kept.name = kept.group = "kept";
    pool.name = pool.group = "pool";
    settings.node.name = "n0";
    settings.node.listen = {"unix:" + dir.path() + "/n0.sock"};
    settings.staging.size_bytes = 32 * mib;
    settings.providers = {fast, kept, pool};
    settings.nodes = {{settings.node.name, settings.node.listen, settings.providers}};
  }

  std::vector<tensor_view> tensors() {
    return {{{"w", dtype::u8, {bytes.size()}}, bytes.data(), {}}};
  }
};

} // namespace millrace::testing
