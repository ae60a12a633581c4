// Filling a slot: from the one that is picked to the version that is done. Used by the store.
#pragma once

#include <millrace/storage/pmem/pool_state.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace millrace::storage::pmem {

/// See `checkpoint_store::begin`; blocks for as long as one publish takes.
result<std::unique_ptr<pending_version>> begin_version(
  const std::shared_ptr<pool_state>& state, const save_spec& what, std::function<void()> freed,
  gate::ticket ticket);

} // namespace millrace::storage::pmem
