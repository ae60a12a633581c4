// Models in registered memory: what a transport fills is where they rest. Opened by `open_bucket`.
#pragma once

#include <millrace/core/memory.hpp>
#include <millrace/storage/bucket.hpp>
#include <millrace/storage/when_full.hpp>

#include <cstdint>
#include <memory>

namespace millrace::storage {

struct memory_bucket_options {
  /// Where the models rest; others may use it too.
  std::shared_ptr<memory_source> memory;
  /// Most bytes the models may take, alignment included; 0: all that `memory` can lend.
  std::uint64_t capacity_bytes = 0;
  when_full full = when_full::refuse;
};

/// Errors: `invalid_argument` without memory, or for a capacity beyond what the memory has.
result<std::shared_ptr<bucket>> open_memory_bucket(memory_bucket_options options);

} // namespace millrace::storage
