// The space of the repository: taken for versions, freed by evicting others where configured.
// Called by storing.
#pragma once

#include <millrace/storage/pmem/pool_state.hpp>

#include <cstdint>

namespace millrace::storage::pmem {

/// Checks that a model of this size would fit into the empty repository, before anything is
/// allocated for its layout. Errors: `no_space`.
[[nodiscard]] status check_possible(pool_state& state, std::uint64_t size_bytes);

/// Takes the memory in which a version, whose shape is set, is described, and its layers.
/// Errors: `no_space` naming `descriptions_max`; `unknown_layers`.
[[nodiscard]] status take_descriptions(
  pool_state& state, stored_version& v, const checked_spec& checked,
  const std::vector<described_layer>& layers);

/// Takes the memory in which a shard is described.
/// Errors: `no_space` naming `descriptions_max`.
result<std::shared_ptr<const account_lease>> take_descriptions(
  pool_state& state, const shard_spec& spec, const shard_shape& shape);

/// Reserves the objects of a version whose shape is set: its slot, and its index with a body of
/// `body_bytes`.
/// Errors: `no_space` with the bytes asked for and free.
[[nodiscard]] status take_space(pool_state& state, stored_version& v, std::uint64_t body_bytes);

/// Returns the bytes that all models of the repository may take.
std::uint64_t capacity_of(const pool_state& state) noexcept;

/// Tells that the name was removed from the repository. Needs the model's lock.
void forget_stored(pool_state& state, const std::string& name);

/// Tells that the version was stored or opened. Needs the model's lock.
void touch_stored(pool_state& state, const stored_version& v);

} // namespace millrace::storage::pmem
