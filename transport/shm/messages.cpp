// Checks the bounds of a move.
#include <millrace/transport/is_direction.hpp>
#include <millrace/transport/shm/messages.hpp>

namespace millrace::transport::shm {

status check(const move& m) {
  if (!is_direction(m.dir))
    return {errc::protocol_error, "a move has an unknown direction"};
  if (m.ops.size() > move_ops_max)
    return {errc::protocol_error, "a move of more parts than one may have"};
  auto writes = m.dir == static_cast<std::uint8_t>(direction::write);
  auto around_max = writes ? digest_block_bytes - 1 : 0;
  std::uint64_t digests = 0; // cannot wrap: there are few ops
  for (auto& op : m.ops) {
    if (op.lead > around_max || op.tail > around_max)
      return {errc::protocol_error, "a move with digests of what it does not move"};
    digests += digests_at_most(op.length);
  }
  if (m.digests && digests > move_digests_max)
    return {errc::protocol_error, "a move of more digests than one may have"};
  return {};
}

} // namespace millrace::transport::shm
