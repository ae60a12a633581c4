// Storing models of the repository, from taking space to the published version. Called by the
// bucket.
#pragma once

#include <millrace/storage/pmem/pool_state.hpp>

#include <memory>
#include <vector>

namespace millrace::storage::pmem {

/// See `bucket::reserve`. Blocks for as long as evictions take.
result<std::unique_ptr<reservation>> reserve_model(
  const std::shared_ptr<pool_state>& state, model_spec spec,
  const std::vector<described_layer>& layers, gate::ticket ticket);

} // namespace millrace::storage::pmem
