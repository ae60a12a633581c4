// Cuts parts into chunks for the movers; small parts share one chunk.
// Called by the fabric.
#include <millrace/transport/copy/copy.hpp>
#include <millrace/transport/copy/local_copy.hpp>
#include <millrace/transport/memory/memory_distance.hpp>

#include <algorithm>

namespace millrace::transport {

namespace {

using part_list = std::vector<local_copy>;

std::vector<part_list> cut(const std::vector<local_copy>& parts, std::uint64_t chunk_bytes) {
  std::vector<part_list> out{{}};
  std::uint64_t room = chunk_bytes;
  for (auto& part : parts)
    for (std::uint64_t at = 0; at < part.length;) {
      auto length = std::min(part.length - at, room);
      out.back().push_back({part.target + at, part.source + at, length});
      at += length;
      room -= length;
      if (room == 0) {
        out.emplace_back();
        room = chunk_bytes;
      }
    }
  return out;
}

void run(const part_list& parts, store_mode mode) {
  copy_parts(parts, mode);
  if (mode != store_mode::cached)
    streaming_fence();
}

} // namespace

void run_local_copies(
  mover_pool& movers, const copy_limits& limits, std::vector<local_copy> parts, bool write_back,
  completion<void> done) {
  if (write_back && !can_write_back())
    return done(fail(errc::unsupported, "this processor has no instruction to write lines back"));
  std::uint64_t total = 0;
  for (auto& part : parts)
    total += part.length;
  auto mode = write_back           ? store_mode::written_back
    : total >= streaming_bytes_min ? store_mode::streaming
                                   : store_mode::cached;
  auto chunks = std::make_shared<std::vector<part_list>>(cut(parts, limits.chunk_bytes));
  if (total <= limits.inline_local_bytes_max) {
    for (auto& c : *chunks)
      run(c, mode);
    return done({});
  }
  movers.submit(
    static_cast<std::uint32_t>(chunks->size()),
    [chunks, mode, near = limits.near_memory](std::uint32_t i) {
      auto& part = (*chunks)[i];
      if (near && !part.empty())
        stay_near_memory(part.front().target);
      run(part, mode);
    },
    [done = std::move(done)] { done({}); }, job_class::urgent);
}

} // namespace millrace::transport
