// The options of a memory bucket: keys of a provider in the configuration set them.
#pragma once

#include <millrace/config/schema.hpp>
#include <millrace/storage/when_full.hpp>

#include <algorithm>
#include <cstdint>

namespace millrace::storage {

struct memory_bucket_options {
  /// Most bytes the models may take, alignment included; 0: all that the memory can lend.
  std::uint64_t capacity_bytes = 1u << 30;
  when_full full = when_full::refuse;
  /// The most of the capacity that descriptions of models may take; 0: half of it.
  std::uint64_t descriptions_max_bytes = 0;
};

inline std::uint64_t descriptions_bytes_of(const memory_bucket_options& options) {
  auto chosen = options.descriptions_max_bytes;
  return chosen == 0 ? options.capacity_bytes / 2 : std::min(chosen, options.capacity_bytes);
}

/// The tensors rest in an arena of their own, what describes the models beside it.
inline config::memory_needs needs_of(const memory_bucket_options& options) {
  return {.own_bytes = options.capacity_bytes, .heap_bytes = descriptions_bytes_of(options)};
}

} // namespace millrace::storage

namespace millrace::config {
template <>
key_table<storage::memory_bucket_options> keys_of();
}
