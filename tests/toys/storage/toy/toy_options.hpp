// The options of a toy bucket: keys of a provider in the configuration set them.
#pragma once

#include <millrace/config/schema.hpp>

#include <cstdint>

namespace millrace::storage {

struct toy_bucket_options {
  std::uint64_t capacity_bytes = 1u << 30;
  std::uint64_t descriptions_max_bytes = 256u << 20;
  std::uint32_t models_max = 1'000'000;
};

/// It rests in an arena of its own, and what describes its models beside that.
inline config::memory_needs needs_of(const toy_bucket_options& options) {
  return {.own_bytes = options.capacity_bytes, .heap_bytes = options.descriptions_max_bytes};
}

} // namespace millrace::storage

namespace millrace::config {
template <>
key_table<storage::toy_bucket_options> keys_of();
}
