// What pool crash tests save: small pools and shards. Their bytes follow from name, rank and step.
// Used by parents and children.
#pragma once

#include <millrace/storage/pmem/pool.hpp>
#include <millrace/tests/support/bucket_driving.hpp>
#include <millrace/tests/support/checkpoint_driving.hpp>
#include <millrace/tests/support/heap_memory_source.hpp>

#include <cstdint>
#include <string>

namespace millrace::testing {

/// A small pool, made when it is missing.
inline storage::pool_options small_pool(const std::string& path, std::uint64_t capacity_bytes) {
  storage::pool_options options;
  options.path = path;
  options.capacity_bytes = capacity_bytes;
  options.create_if_missing = true;
  options.populate = false;
  options.staging = storage::lent_memory::pages; // direct I/O where the file system knows it
  options.window_bytes = 512u << 10;
  return options;
}

/// Odd sizes that follow from the name: several digest blocks, nothing at all, within a block.
/// Names that begin with "large" are ten times as large, so that they rest in extents of their own.
inline shard_spec small_shard(
  const std::string& model, std::uint32_t rank = 0, std::uint32_t world_size = 1) {
  auto odd = content_seed(model, rank, 0) % 1000;
  auto times = model.starts_with("large") ? 10u : 1u;
  return shard_of(model, {times * 300'001 + odd, 0, 64, 20'000 + odd}, rank, world_size);
}

/// Saves like `save`. The bytes of every other step count as written back by the mover.
inline status save_either_way(
  storage::checkpoint_store& at, const shard_spec& shard, std::uint64_t step) {
  auto version = begin(at, shard.model, shard.rank, step);
  if (!version)
    return version.error();
  if (step % 2 == 0 && at.capabilities().cpu_flush)
    (*version)->written_back();
  auto outcome = finish(**version, shard, step);
  return outcome ? status{} : outcome.error();
}

/// Every done version of every model that small_shard() made, compared.
inline status check_all_versions(storage::checkpoint_store& at) {
  for (auto& m : list_all(at))
    for (auto& s : m.shards)
      for (auto& v : s.slots)
        if (v.state == slot_state::done)
          if (auto bad = check_version(at, small_shard(m.model, s.rank, m.world_size), v.step);
              !bad.ok())
            return bad.within(m.model + " step " + std::to_string(v.step));
  return {};
}

} // namespace millrace::testing
