// Saves and restores whole shards through the checkpoint store's interface. Used by crash, order and pool tests.
#pragma once

#include <millrace/storage/pmem/pool.hpp>
#include <millrace/tests/support/bucket_driving.hpp>
#include <millrace/tests/support/heap_memory_source.hpp>
#include <millrace/tests/support/held_completion.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace millrace::testing {

/// A small pool with everything on; made when it is missing.
inline storage::pool_options small_pool(const std::string& path, std::uint64_t capacity_bytes) {
  storage::pool_options options;
  options.path = path;
  options.capacity_bytes = capacity_bytes;
  options.create_if_missing = true;
  options.populate = false;
  options.staging = std::make_shared<heap_memory_source>(4u << 20);
  options.window_bytes = 512u << 10;
  return options;
}

/// Odd sizes that follow from the name: within a digest block, several blocks, nothing at all.
inline shard_spec small_shard(
  const std::string& model, std::uint32_t rank = 0, std::uint32_t world_size = 1) {
  auto odd = std::hash<std::string>{}(model) % 1000 + rank;
  shard_spec shard;
  shard.model = model;
  shard.rank = rank;
  shard.world_size = world_size;
  shard.tensors = spec_of(model, {300'001 + odd, 0, 64, 20'000 + odd}).tensors;
  return shard;
}

/// What the bytes of a version are made of.
inline std::uint64_t version_seed(
  const std::string& model, std::uint32_t rank, std::uint64_t step) {
  return std::hash<std::string>{}(model) + rank * 1'000'003 + step;
}

inline result<storage::enrolled_shard> enroll(storage::checkpoint_store& at, shard_spec shard) {
  held_completion<storage::enrolled_shard> done;
  at.enroll(std::move(shard), done.callback());
  return done.take();
}

inline result<std::unique_ptr<storage::pending_version>> begin(
  storage::checkpoint_store& at, const std::string& model, std::uint32_t rank, std::uint64_t step) {
  held_completion<std::unique_ptr<storage::pending_version>> done;
  at.begin(model, rank, step, done.callback());
  return done.take();
}

/// Begins, fills, publishes. `written_back`: as a mover does that wrote its lines back.
inline status save(
  storage::checkpoint_store& at, const shard_spec& shard, std::uint64_t step, bool written_back) {
  auto version = begin(at, shard.model, shard.rank, step);
  if (!version)
    return version.error();
  auto seed = version_seed(shard.model, shard.rank, step);
  if (auto bad = fill_windows(**version, seed); !bad.ok())
    return bad;
  if (written_back)
    (*version)->written_back();
  held_completion<std::uint64_t> published;
  (*version)->publish(digests_of(shard.tensors, seed), published.callback());
  auto outcome = published.take();
  return outcome ? status{} : outcome.error();
}

inline status erase(
  storage::checkpoint_store& at, const std::string& model, std::optional<std::uint64_t> step = {}) {
  held_completion<void> done;
  at.erase(model, step, done.callback());
  auto outcome = done.take();
  return outcome ? status{} : outcome.error();
}

inline result<storage::repack_report> repack(storage::checkpoint_store& at) {
  held_completion<storage::repack_report> done;
  at.repack({}, done.callback());
  return done.take();
}

inline result<std::vector<checkpoint_summary>> list(storage::checkpoint_store& at) {
  held_completion<std::vector<checkpoint_summary>> done;
  at.list({}, {}, 1000, done.callback());
  return done.take();
}

inline result<std::shared_ptr<storage::opened_model>> open_version(
  storage::checkpoint_store& at, const std::string& model, std::uint32_t rank,
  std::optional<std::uint64_t> step = {}) {
  held_completion<std::shared_ptr<storage::opened_model>> done;
  at.open(model, rank, step, done.callback());
  return done.take();
}

/// Compares the bytes and the digests of a version with what was saved as its step.
inline status check_version(
  storage::checkpoint_store& at, const shard_spec& shard, std::optional<std::uint64_t> step = {}) {
  auto version = open_version(at, shard.model, shard.rank, step);
  if (!version)
    return version.error();
  auto& record = (*version)->record();
  auto seed = version_seed(shard.model, shard.rank, record.version);
  if (record.spec.tensors != shard.tensors)
    return {errc::corrupt_data, shard.model + " has another layout"};
  if (record.digests != digests_of(shard.tensors, seed))
    return {errc::corrupt_data, shard.model + " has other digests"};
  return check_ranges(**version, everything(shard.tensors), seed);
}

/// Every done version of every model that small_shard() made, compared.
inline status check_all_versions(storage::checkpoint_store& at) {
  auto models = list(at);
  if (!models)
    return models.error();
  for (auto& m : *models)
    for (auto& s : m.shards)
      for (auto& v : s.slots)
        if (v.state == slot_state::done)
          if (auto bad = check_version(at, small_shard(m.model, s.rank, m.world_size), v.step);
              !bad.ok())
            return bad.within(m.model + " step " + std::to_string(v.step));
  return {};
}

/// Sum of everything reserved for shards.
inline std::uint64_t reserved_bytes(const std::vector<checkpoint_summary>& models) {
  std::uint64_t sum = 0;
  for (auto& m : models)
    for (auto& s : m.shards)
      sum += s.reserved_bytes;
  return sum;
}

} // namespace millrace::testing
