// Removing models and steps. Called by the checkpoint store, the bucket and leases.
#pragma once

#include <millrace/storage/pmem/pool_state.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace millrace::storage::pmem {

/// Removes a model, or one step of it. Errors: `not_found`, `busy` while a job is attached.
[[nodiscard]] status erase_model(
  pool_state& state, const std::string& name, std::optional<std::uint64_t> step);

/// Removes a shard or a stored version that is not in use, and frees its space, in one change.
/// Needs the model's lock.
[[nodiscard]] status remove_owner(pool_state& state, model& m, slot_owner& s);

/// Makes a shard or a stored version invisible and removes it, at once or after its last reader.
/// Needs the model's lock.
[[nodiscard]] status erase_owner(pool_state& state, model& m, slot_owner& s, std::uint64_t flags);

/// Finishes erasures that a crash interrupted: those of versions that were being read.
[[nodiscard]] status finish_erasing(pool_state& state);

/// Removes an empty model from the map. Needs the model's lock.
void drop_if_empty(pool_state& state, model& m);

/// Returns the error for a model or shard that does not exist.
status no_such_model(const std::string& name);
status no_such_shard(const std::string& name, std::uint32_t rank);

/// Returns the shard; null when it does not exist or is erased. Needs the model's lock.
std::shared_ptr<shard> find_shard(const model& m, std::uint32_t rank);

} // namespace millrace::storage::pmem
