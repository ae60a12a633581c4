// Registration of shards. Called by the checkpoint store.
#pragma once

#include <millrace/storage/pmem/pool_state.hpp>

namespace millrace::storage::pmem {

/// See `checkpoint_store::enroll`; blocks.
result<enrolled_shard> enroll_shard(pool_state& state, shard_spec spec);

/// See `checkpoint_store::leave`. Never waits for a disk. Returns the shard if the caller has to
/// call `mark_finished`, which may wait.
std::shared_ptr<shard> leave_shard(
  pool_state& state, const std::string& name, std::uint32_t rank, bool finished);

/// Makes it durable that the job of a shard ended in order, unless the shard was erased or
/// registered again.
void mark_finished(pool_state& state, const std::string& name, const std::shared_ptr<shard>& s);

} // namespace millrace::storage::pmem
