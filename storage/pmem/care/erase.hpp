// Taking models and steps away. Used by the store, and by leases.
#pragma once

#include <millrace/storage/pmem/pool_state.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace millrace::storage::pmem {

/// Removes a model, or one step of it. Errors: `not_found`, `busy` while a job is attached.
[[nodiscard]] status erase_model(
  pool_state& state, const std::string& name, std::optional<std::uint64_t> step);

/// Removes a shard or a stored version that nobody uses, space and all, in one change. Needs the model's lock.
[[nodiscard]] status remove_owner(pool_state& state, model& m, slot_owner& s);

/// Makes it invisible, and removes it: at once, or when its last reader has gone. Needs the model's lock.
[[nodiscard]] status erase_owner(pool_state& state, model& m, slot_owner& s, std::uint64_t flags);

/// Finishes what a crash interrupted: what was erased while somebody read it.
[[nodiscard]] status finish_erasing(pool_state& state);

/// Takes a model of which nothing is left out of the map. Needs the model's lock.
void drop_if_empty(pool_state& state, model& m);

/// The error of a model or shard that is not there.
status no_such_model(const std::string& name);
status no_such_shard(const std::string& name, std::uint32_t rank);

/// The shard, or null when it is not there or erased. Needs the model's lock.
std::shared_ptr<shard> find_shard(const model& m, std::uint32_t rank);

} // namespace millrace::storage::pmem
