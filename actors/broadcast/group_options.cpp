// The keys of the section `groups`.
#include <millrace/actors/broadcast/group_options.hpp>

#include <array>

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
      "size of the ring in shared memory through which the members of a group broadcast, at least "
      "two chunks. One that fits in the caches of the processor is fastest"))),
    key<&o::chunk_bytes>(expert(size(
      "chunk", 4 * kib, 64 * mib,
      "bytes that pass through a ring at a time, rounded down to a power of two"))),
    key<&o::members_max>(expert(count("members_max", 1, 1024, "members of one group"))),
    key<&o::leases_max>(expert(count(
      "leases_max", 1, 1u << 24,
      "memberships in groups, which processes share; more get the answer `busy`"))),
  });
  return {rows};
}

} // namespace millrace::config
