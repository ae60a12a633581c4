// The options of a node's groups: the section `groups` of the configuration sets them.
#pragma once

#include <millrace/config/keys.hpp>
#include <millrace/transport/ring/chunk_ring.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>

namespace millrace::actors {

struct group_options {
  std::uint64_t memory_bytes = 64u << 20;
  std::uint64_t ring_bytes = 4u << 20;
  std::uint64_t chunk_bytes = 256u << 10;
  std::uint32_t members_max = 256;
  std::uint32_t leases_max = 65'536; // memberships, which processes share
};

/// Returns the shape of a ring for so many members, at least 2.
inline transport::ring_shape ring_shape_for(const group_options& o, std::uint32_t members) {
  auto chunk_bytes = std::bit_floor(o.chunk_bytes);
  auto chunks = std::clamp<std::uint64_t>(o.ring_bytes / chunk_bytes, 2, 65'536);
  return {members, chunk_bytes, static_cast<std::uint32_t>(chunks)};
}

} // namespace millrace::actors

namespace millrace::config {
template <>
key_table<actors::group_options> keys_of();
}
