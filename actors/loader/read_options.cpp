// The keys of the section `reading`.
#include <millrace/actors/loader/read_options.hpp>

#include <array>

namespace millrace::config {

template <>
key_table<actors::read_options> keys_of() {
  using o = actors::read_options;
  static constexpr auto rows = std::to_array<bound_key<o>>({
    key<&o::bandwidth_bytes_per_s>(expert(size(
      "bandwidth", 0, tib,
      "bytes in a second that all processes of a host together may read from working sets on "
      "other hosts. 0: as much as is measured"))),
    key<&o::processes>(
      expert(count("processes", 1, 4096, "processes of a host that share `bandwidth`"))),
    key<&o::stages>(expert(count(
      "stages", 2, 64,
      "parts in which a batch is asked for. The next part goes out when one has come"))),
    key<&o::inflight_bytes_min>(expert(size(
      "inflight_min", 4 * kib, 16 * gib,
      "bytes that a process may have asked for and not got yet, even if it measures that fewer "
      "suffice"))),
    key<&o::inflight_bytes_max>(expert(size(
      "inflight_max", 4 * kib, 16 * gib,
      "the same, even if it measures that more are needed. Lower it where switches drop packets "
      "when several nodes answer at once"))),
    key<&o::staging_bytes>(expert(size(
      "staging", 4 * mib, 16 * gib,
      "memory of a client for reads into memory of the program that is not registered, made for "
      "the first of them"))),
    key<&o::retry_ms>(expert(ms(
      "retry", 1, 3'600'000,
      "time after which a data server that was lost is tried again, while its samples are read "
      "from files"))),
  });
  return {rows, [](const o& reads) -> std::optional<misfit> {
            if (reads.inflight_bytes_min > reads.inflight_bytes_max)
              return misfit{"inflight_min", "must not be above", "inflight_max"};
            if (reads.inflight_bytes_max > reads.staging_bytes)
              return misfit{"inflight_max", "must not be above", "staging"};
            return {};
          }};
}

} // namespace millrace::config
