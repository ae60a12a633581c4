// Models in registered memory: what a transport fills is where they rest. Opened by `open_bucket`.
#pragma once

#include <millrace/core/memory.hpp>
#include <millrace/storage/bucket.hpp>
#include <millrace/storage/memory/memory_options.hpp>

#include <memory>

namespace millrace::storage {

/// The models rest in `memory`; others may use it too.
/// Errors: `invalid_argument` without memory, or for a capacity beyond what the memory has.
result<std::shared_ptr<bucket>> open_memory_bucket(
  memory_bucket_options options, std::shared_ptr<memory_source> memory);

} // namespace millrace::storage
