// Repack: frees unneeded versions and reduces fragmentation. Run by the checkpoint store on a
// thread of its own.
#pragma once

#include <millrace/storage/pmem/pool_state.hpp>

namespace millrace::storage::pmem {

/// See `checkpoint_store::repack`. Errors: `busy` while another one runs.
void start_repack(
  const std::shared_ptr<pool_state>& state, progress_callback progress, gate::ticket ticket,
  completion<repack_report> done);

} // namespace millrace::storage::pmem
