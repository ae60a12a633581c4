// Room for versions of the repository, made by evicting others where that is wanted. Used when models are stored.
#pragma once

#include <millrace/storage/pmem/pool_state.hpp>

#include <cstdint>

namespace millrace::storage::pmem {

/// Whether an empty repository would have room for a model of that size: asked before anything is made that grows with
/// its layout. Errors: `no_space`.
[[nodiscard]] status check_possible(pool_state& state, std::uint64_t size_bytes);

/// Reserves the objects of a version that has its shape: its index with a body of so many bytes, and its slot.
/// Errors: `no_space` with bytes asked for and free.
[[nodiscard]] status take_space(pool_state& state, stored_version& v, std::uint64_t body_bytes);

/// Bytes that all models of the repository may take.
std::uint64_t capacity_of(const pool_state& state) noexcept;

/// The name is not the repository's any more. Needs the model's lock.
void forget_stored(pool_state& state, const std::string& name);

/// The name was stored or opened. Needs the model's lock.
void touch_stored(pool_state& state, const std::string& name);

} // namespace millrace::storage::pmem
