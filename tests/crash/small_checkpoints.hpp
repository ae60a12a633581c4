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

/// The user's bytes of a step: of models whose names begin with "extra", and of every size.
inline std::uint64_t small_extra(const std::string& model, std::uint64_t step) {
  return model.starts_with("extra") && step % 3 != 0 ? step * 7919 % 3001 : 0;
}

/// Saves like `save`. The bytes of every other step count as written back by the mover.
inline status save_either_way(
  storage::checkpoint_store& at, const shard_spec& shard, std::uint64_t step) {
  auto extra_bytes = small_extra(shard.model, step);
  auto version =
    begin(at, {.model = shard.model, .rank = shard.rank, .step = step, .extra_bytes = extra_bytes});
  if (!version)
    return version.error();
  if (step % 2 == 0 && at.capabilities().cpu_flush)
    (*version)->written_back();
  auto outcome = finish(**version, shard, step, extra_bytes);
  return outcome ? status{} : outcome.error();
}

/// Every done version of every model that small_shard() made, compared.
inline status check_all_versions(storage::checkpoint_store& at) {
  for (auto& m : list_all(at))
    for (auto& s : m.shards)
      for (auto& v : s.slots) {
        if (v.state != slot_state::done)
          continue;
        auto shard = small_shard(m.model, s.rank, m.world_size);
        auto bad = check_version(at, shard, v.step);
        if (bad.ok())
          bad = check_extra(at, shard, v.step, small_extra(m.model, v.step));
        if (!bad.ok())
          return bad.within(m.model + " step " + std::to_string(v.step));
      }
  return {};
}

} // namespace millrace::testing
