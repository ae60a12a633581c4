// The bucket in registered memory: a transport fills the models' final location. Opened by
// the kind in `storage/builtin.cpp`.
#pragma once

#include <millrace/core/memory.hpp>
#include <millrace/storage/bucket.hpp>
#include <millrace/storage/memory/memory_options.hpp>

#include <memory>

namespace millrace::storage {

/// Opens an empty bucket that stores models in `memory`, which others may use too.
/// Errors: `invalid_argument` without memory, or for a capacity that the memory does not have.
result<std::shared_ptr<bucket>> open_memory_bucket(
  memory_bucket_options options, std::shared_ptr<memory_source> memory);

} // namespace millrace::storage
