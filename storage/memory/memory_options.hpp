// The options of a memory bucket: keys of a provider in the configuration set them.
#pragma once

#include <millrace/config/schema.hpp>
#include <millrace/storage/when_full.hpp>

#include <cstdint>

namespace millrace::storage {

struct memory_bucket_options {
  /// Most bytes the models may take, alignment included; 0: all that the memory can lend.
  std::uint64_t capacity_bytes = 1u << 30;
  when_full full = when_full::refuse;
};

/// It rests in an arena of its own.
inline config::memory_needs needs_of(const memory_bucket_options& options) {
  return {.own_bytes = options.capacity_bytes};
}

} // namespace millrace::storage

namespace millrace::config {
template <>
key_table<storage::memory_bucket_options> keys_of();
}
