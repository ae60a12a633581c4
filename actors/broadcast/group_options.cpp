// The keys of the section `groups`.
#include <millrace/actors/broadcast/group_options.hpp>

#include <array>
#include <bit>

namespace millrace::config {

template <>
key_table<actors::group_options> keys_of() {
  using o = actors::group_options;
  static constexpr auto rows = std::to_array<bound_key<o>>({
    key<&o::memory_bytes>(used_as(
      key_use::for_peers,
      expert(size(
        "memory", 0, tib,
        "memory for the rings of all groups, which processes share; made when a group begins. 0: "
        "the node keeps no groups")))),
    key<&o::ring_bytes>(expert(size(
      "ring", 64 * kib, gib,
      "size of the ring in shared memory through which the members of a group on one host "
      "broadcast; a power of two. One that fits in the caches of the processor is fastest"))),
    key<&o::chunk_bytes>(expert(size(
      "chunk", 4 * kib, gib / 2,
      "bytes that pass through a ring at a time; a power of two, at most half of `ring`"))),
    key<&o::members_max>(expert(count("members_max", 1, 1024, "members of one group"))),
  });
  return {rows, [](const o& groups) -> std::optional<misfit> {
            if (!std::has_single_bit(groups.ring_bytes))
              return misfit{"ring", "must be a power of two", {}};
            if (!std::has_single_bit(groups.chunk_bytes))
              return misfit{"chunk", "must be a power of two", {}};
            if (groups.chunk_bytes > groups.ring_bytes / 2)
              return misfit{"chunk", "must be at most half of", "ring"};
            if (groups.memory_bytes != 0 && groups.memory_bytes < groups.ring_bytes)
              return misfit{"memory", "must be 0, or at least", "ring"};
            return {};
          }};
}

} // namespace millrace::config
