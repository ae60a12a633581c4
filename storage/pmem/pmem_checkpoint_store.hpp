// The checkpoint store of an open pool. Made by the pool.
#pragma once

#include <millrace/storage/pmem/pool_state.hpp>

#include <memory>

namespace millrace::storage::pmem {

/// Makes the store. It keeps the pool's state.
std::shared_ptr<checkpoint_store> make_pmem_checkpoint_store(std::shared_ptr<pool_state> state);

} // namespace millrace::storage::pmem
