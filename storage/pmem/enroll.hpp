// Registration of shards. Used by the store.
#pragma once

#include <millrace/storage/pmem/core.hpp>

namespace millrace::storage::pmem {

/// See `checkpoint_store::enroll`; blocks.
result<enrolled_shard> enroll_shard(core& c, shard_spec spec);

/// See `checkpoint_store::leave`.
void leave_shard(core& c, const std::string& name, std::uint32_t rank, bool finished);

} // namespace millrace::storage::pmem
