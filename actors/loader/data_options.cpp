// The keys of the section `data`.
#include <millrace/actors/loader/data_options.hpp>
#include <millrace/core/working_set.hpp>

#include <array>
#include <bit>

namespace millrace::config {

namespace {

constexpr auto room_policies = std::to_array<key_text>({"refuse", "evict"});

} // namespace

template <>
key_table<actors::data_options> keys_of() {
  using o = actors::data_options;
  static constexpr auto rows = std::to_array<bound_key<o>>({
    key<&o::capacity_bytes>(size(
      "capacity", 0, 1024 * tib,
      "memory for working sets of training data, touched when the node starts; a multiple of "
      "`region_size`. 0: the node has no data server")),
    key<&o::region_bytes>(expert(size(
      "region_size", region_bytes_min, region_bytes_max,
      "working sets get memory in regions of this size, a power of two"))),
    key<&o::quota_bytes>(expert(size(
      "quota", 0, 1024 * tib,
      "memory in regions that the sets of one user may have, those counted that were unloaded and "
      "still have readers; a region at least. 0: no quota"))),
    key<&o::when_full>(expert(choice(
      "when_full", room_policies,
      "what becomes of a preload for which there is no room: `refuse` answers `no_space`; `evict` "
      "unloads sets that nobody has open, the least recently used ones first, and those of the "
      "same user alone where `quota` is what lacks"))),
    key<&o::sets_max>(
      expert(count("sets_max", 1, 1u << 20, "working sets and appends to them at a time"))),
    key<&o::leases_max>(expert(count(
      "leases_max", 1, 1u << 24,
      "working sets that clients have open or preload, each of them counted, which processes "
      "share; more get the answer `busy`"))),
  });
  return {rows, [](const o& data) -> std::optional<misfit> {
            if (!std::has_single_bit(data.region_bytes))
              return misfit{"region_size", "must be a power of two", {}};
            if (data.capacity_bytes % data.region_bytes != 0)
              return misfit{"capacity", "must be a multiple of", "region_size"};
            if (data.quota_bytes != 0 && data.quota_bytes < data.region_bytes)
              return misfit{"quota", "must be 0, or at least", "region_size"};
            return {};
          }};
}

} // namespace millrace::config
