// The repository's bucket of an open pool. Made by the pool.
#pragma once

#include <millrace/storage/pmem/pool_state.hpp>

#include <memory>

namespace millrace::storage::pmem {

std::shared_ptr<bucket> make_pmem_bucket(std::shared_ptr<pool_state> state);

} // namespace millrace::storage::pmem
