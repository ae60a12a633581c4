// The bucket in registered memory: a transport fills the models' final location. Opened by
// `open_bucket`.
#pragma once

#include <millrace/core/memory.hpp>
#include <millrace/storage/bucket.hpp>
#include <millrace/storage/when_full.hpp>

#include <cstdint>
#include <memory>

namespace millrace::storage {

struct memory_bucket_options {
  /// Memory for the models. Others may use it too.
  std::shared_ptr<memory_source> memory;
  /// Most bytes that the models may take, alignment included. 0: all that `memory` can lend.
  std::uint64_t capacity_bytes = 0;
  when_full full = when_full::refuse;
};

/// Opens an empty bucket. Errors: `invalid_argument` without memory, or for a capacity that the
/// memory does not have.
result<std::shared_ptr<bucket>> open_memory_bucket(memory_bucket_options options);

} // namespace millrace::storage
