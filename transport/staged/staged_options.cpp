// The keys of the section `staged`.
#include <millrace/core/digest.hpp>
#include <millrace/core/durations.hpp>
#include <millrace/transport/staged/messages.hpp>
#include <millrace/transport/staged/staged_options.hpp>

#include <array>

namespace millrace::config {

template <>
key_table<transport::staged_options> keys_of() {
  using o = transport::staged_options;
  static constexpr auto rows = std::to_array<bound_key<o>>({
    key<&o::size_bytes>(used_as(
      key_use::for_peers,
      expert(size(
        "size", 4 * mib, tib,
        "memory through which bytes of GPUs pass that no network reaches, which processes share; "
        "made "
        "when a peer first asks for it")))),
    key<&o::chunk_bytes>(expert(size(
      "chunk", digest_block_bytes, transport::staged::chunk_bytes_most,
      "bytes of a GPU that pass at a time"))),
    key<&o::chunks_max>(expert(
      count("chunks_max", 1, transport::staged::chunks_most, "chunks lent to one peer at a time"))),
    key<&o::transfers_max>(expert(count(
      "transfers_max", 1, 1u << 24,
      "transfers of each peer that wait for chunks; more get the answer `busy`"))),
    key<&o::hold_timeout_ms>(expert(ms(
      "hold_timeout", 1, hour_ms,
      "time that a peer may keep a chunk; also the time that it waits for one before it gets the "
      "answer `busy`"))),
  });
  return {rows, [](const o& options) -> std::optional<misfit> {
            if (options.chunk_bytes <= options.size_bytes)
              return {};
            return misfit{"chunk", "must not be above", "size"};
          }};
}

} // namespace millrace::config
