// The options of a node's groups: the section `groups` of the configuration sets them.
#pragma once

#include <millrace/config/keys.hpp>

#include <cstdint>

namespace millrace::actors {

struct group_options {
  std::uint64_t memory_bytes = 64u << 20;
  std::uint64_t ring_bytes = 2u << 20;
  std::uint64_t chunk_bytes = 256u << 10;
  std::uint32_t members_max = 256;
};

/// Returns the number of chunks of a ring.
inline std::uint32_t ring_chunks(const group_options& o) noexcept {
  return static_cast<std::uint32_t>(o.ring_bytes / o.chunk_bytes);
}

} // namespace millrace::actors

namespace millrace::config {
template <>
key_table<actors::group_options> keys_of();
}
