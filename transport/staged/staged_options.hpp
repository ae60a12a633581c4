// The options of the staged driver: the section `staged` of the configuration sets them.
#pragma once

#include <millrace/config/keys.hpp>

#include <cstdint>

namespace millrace::transport {

struct staged_options {
  /// Staging memory, made when a peer first asks; at least one chunk.
  std::uint64_t size_bytes = 64u << 20;
  std::uint64_t chunk_bytes = 4u << 20; // bytes that pass at a time; at least one digest block
  std::uint32_t chunks_max = 8;         // chunks lent to one peer at a time
  std::uint32_t transfers_max = 65'536; // waiting for chunks of each peer; more are answered `busy`
  /// How long a peer may keep a chunk, and how long its request waits for one before it is answered
  /// `busy`.
  std::uint32_t hold_timeout_ms = 30'000;
};

} // namespace millrace::transport

namespace millrace::config {
template <>
key_table<transport::staged_options> keys_of();
}
