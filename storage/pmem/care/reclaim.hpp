// Room made of what is missed least. Used when a shard is registered and space is low.
#pragma once

#include <millrace/storage/pmem/pool_state.hpp>

#include <cstdint>

namespace millrace::storage::pmem {

/// Frees the slots that are missed least of all models until so many bytes may be reserved: see
/// `when_low_space::reclaim`. Bytes freed: none when all that may go would not do.
/// Cost: reads what stays of each model that loses a version, on the calling thread.
result<std::uint64_t> reclaim_space(pool_state& state, std::uint64_t missing_bytes);

} // namespace millrace::storage::pmem
