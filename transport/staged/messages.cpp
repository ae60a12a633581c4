// Checks the bounds of messages.
#include <millrace/core/digest.hpp>
#include <millrace/transport/is_direction.hpp>
#include <millrace/transport/staged/messages.hpp>

namespace millrace::transport::staged {

status check(const hello& m) {
  if (m.version != protocol_version)
    return {
      errc::unsupported_version, "the peer stages by version {}, we by version {}", m.version,
      protocol_version};
  if (
    m.chunk_bytes < digest_block_bytes || m.chunk_bytes > chunk_bytes_most || m.chunks_max == 0 ||
    m.chunks_max > chunks_most)
    return {errc::protocol_error, "a staged hello with bounds that are not valid"};
  return {};
}

status check(const stage& m, std::uint64_t chunk_bytes) {
  if (!is_direction(m.dir))
    return {errc::protocol_error, "staging has an unknown direction"};
  if (m.ranges.size() > ranges_max)
    return {errc::protocol_error, "staging of too many ranges"};
  std::uint64_t bytes = 0;
  for (auto& r : m.ranges) {
    if (r.length > chunk_bytes - bytes)
      return {errc::protocol_error, "staging of more than a chunk"};
    bytes += r.length;
  }
  return {};
}

} // namespace millrace::transport::staged
