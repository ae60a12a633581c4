// Saves and restores whole shards through the checkpoint interface.
// Used by storage, contract and crash tests.
#pragma once

#include <millrace/storage/checkpoint_store.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace millrace::testing {

/// Returns a shard of u8 tensors "t0", "t1", ... of the given sizes.
shard_spec shard_of(
  std::string model, const std::vector<std::uint64_t>& tensor_bytes, std::uint32_t rank = 0,
  std::uint32_t world_size = 1, std::uint32_t keep = 2);

/// Returns the seed of a shard's content at a step; see `fill` in bucket_driving.
std::uint64_t content_seed(const std::string& model, std::uint32_t rank, std::uint64_t step);

result<storage::enrolled_shard> enroll(storage::checkpoint_store& subject, shard_spec shard);
result<std::unique_ptr<storage::pending_version>> begin(
  storage::checkpoint_store& subject, std::string model, std::uint32_t rank, std::uint64_t step,
  std::function<void()> freed = {});
result<std::unique_ptr<storage::pending_version>> begin(
  storage::checkpoint_store& subject, storage::save_spec what, std::function<void()> freed = {});
result<std::shared_ptr<storage::opened_model>> open_version(
  storage::checkpoint_store& subject, std::string model, std::uint32_t rank,
  std::optional<std::uint64_t> step = {});

/// Fills a version that was begun, with as many bytes of the user as it was begun with, and
/// publishes it.
result<std::uint64_t> finish(
  storage::pending_version& pending, const shard_spec& shard, std::uint64_t step,
  std::uint64_t extra_bytes = 0);

/// Begins, fills and publishes a version; returns the step.
result<std::uint64_t> save(
  storage::checkpoint_store& subject, const shard_spec& shard, std::uint64_t step,
  std::uint64_t extra_bytes = 0);

/// Returns the seed of the user's bytes of a step.
std::uint64_t extra_seed(const shard_spec& shard, std::uint64_t step);
/// Compares the user's bytes of a step, their number and their digests.
status check_extra(
  storage::checkpoint_store& subject, const shard_spec& shard, std::uint64_t step,
  std::uint64_t extra_bytes);

/// Opens a version and compares all of it, including the digests. Without a step it takes the
/// newest complete one.
status check_version(
  storage::checkpoint_store& subject, const shard_spec& shard,
  std::optional<std::uint64_t> step = {});

/// Returns the step that `open` takes when it is given none.
result<std::uint64_t> newest_step(
  storage::checkpoint_store& subject, std::string model, std::uint32_t rank);

std::vector<checkpoint_summary> list_all(storage::checkpoint_store& subject);
/// Returns the summary of one model; an empty one when it does not exist.
checkpoint_summary summary_of(storage::checkpoint_store& subject, const std::string& model);

status erase(
  storage::checkpoint_store& subject, std::string model, std::optional<std::uint64_t> step = {});
result<repack_report> repack(storage::checkpoint_store& subject);

} // namespace millrace::testing
