// Reclaiming space from old versions. Called when a shard is registered, or the user's bytes are
// saved, and space is low.
#pragma once

#include <millrace/storage/pmem/pool_state.hpp>

#include <cstdint>

namespace millrace::storage::pmem {

/// Frees slots of all models, in the order of `when_low_space::reclaim`, until `missing_bytes` can
/// be reserved. Returns the bytes freed: 0 when all slots that may be freed are too small together.
/// Cost: reads the versions that stay of each model that loses one, on the calling thread.
result<std::uint64_t> reclaim_space(pool_state& state, std::uint64_t missing_bytes);

} // namespace millrace::storage::pmem
