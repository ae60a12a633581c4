// The space of the repository: taken for versions, freed by evicting others where configured.
// Called by storing.
#pragma once

#include <millrace/storage/pmem/pool_state.hpp>

#include <cstdint>

namespace millrace::storage::pmem {

/// Checks that a model of this size would fit into the empty repository, before anything is
/// allocated for its layout. Errors: `no_space`.
[[nodiscard]] status check_possible(pool_state& state, std::uint64_t size_bytes);

/// *Problem*: a full pool must still take the provider's own records and the marks of erased
/// models. The heap gives no space of one size for another. So the objects of one such record, and
/// the table that names it, are reserved while the pool is open, and given back to the heap for
/// that record alone. The reservation leaves no trace in the file.
struct kept_space {
  explicit kept_space(const heap& home) : record(home), table(home) {}

  change record;
  change table;
};

/// Reserves them if they are not, as far as there is space. Needs `layout_mutex`.
void keep_space(pool_state& state);

/// Reserves the objects of a version whose shape is set: its slot, and its index with a body of
/// `body_bytes`. `always`: see `is_always_taken`.
/// Errors: `no_space` with the bytes asked for and free.
[[nodiscard]] status take_space(
  pool_state& state, stored_version& v, std::uint64_t body_bytes, bool always);

/// Returns the bytes that all models of the repository may take.
std::uint64_t capacity_of(const pool_state& state) noexcept;

/// Tells that the name was removed from the repository. Needs the model's lock.
void forget_stored(pool_state& state, const std::string& name);

/// Tells that the name was stored or opened. Needs the model's lock.
void touch_stored(pool_state& state, const std::string& name);

} // namespace millrace::storage::pmem
