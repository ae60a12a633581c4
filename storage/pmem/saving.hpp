// Saving a checkpoint, from picking a slot to the done version. Called by the checkpoint store.
#pragma once

#include <millrace/storage/pmem/pool_state.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace millrace::storage::pmem {

/// See `checkpoint_store::begin`. Blocks for one publish, and while space is reclaimed for the
/// user's bytes.
result<std::unique_ptr<pending_version>> begin_version(
  const std::shared_ptr<pool_state>& state, const save_spec& what, std::function<void()> freed,
  gate::ticket ticket);

} // namespace millrace::storage::pmem
