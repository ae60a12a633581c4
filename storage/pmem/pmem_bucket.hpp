// The bucket of an open pool, which stores the models of the repository. Made by the pool.
#pragma once

#include <millrace/storage/pmem/pool_state.hpp>

#include <memory>

namespace millrace::storage::pmem {

/// Makes the bucket. It keeps the pool's state.
std::shared_ptr<bucket> make_pmem_bucket(std::shared_ptr<pool_state> state);

} // namespace millrace::storage::pmem
