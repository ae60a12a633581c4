// Cuts at digest blocks where digests are wanted.
// Called by `asking_side`.
#include <millrace/core/digest.hpp>
#include <millrace/transport/staged/cutter.hpp>
#include <millrace/transport/staged/messages.hpp>

#include <algorithm>
#include <limits>

namespace millrace::transport::staged {

cutter::cutter(const transfer& what, std::uint64_t chunk_bytes)
  : what_(&what), chunk_bytes_(chunk_bytes) {
  constexpr auto most = std::numeric_limits<std::uint64_t>::max();
  for (auto& op : what.ops) {
    auto room = most - op.remote_offset;
    region_end_ = op.length > room ? most : std::max(region_end_, op.remote_offset + op.length);
  }
  skip_finished_ops();
}

chunk_content cutter::next() {
  chunk_content out;
  ++given_;
  while (op_ < what_->ops.size() && out.ops.size() < ranges_max) {
    auto& op = what_->ops[op_];
    auto length = next_length(op, chunk_bytes_ - out.bytes);
    if (length == 0)
      break;
    auto first = at_ == 0;
    auto last = at_ + length == op.length;
    out.ranges.push_back({op.remote_offset + at_, length});
    out.ops.push_back(
      {.remote_offset = out.bytes,
       .local = op.local + at_,
       .length = length,
       .lead = first && what_->digests ? op.lead : 0,
       .tail = last && what_->digests ? op.tail : 0});
    out.bytes += length;
    at_ += length;
    skip_finished_ops();
  }
  return out;
}

// Returns 0 if not even one digest block fits any more.
std::uint64_t cutter::next_length(const copy_op& op, std::uint64_t room) const {
  auto length = std::min(op.length - at_, room);
  if (!what_->digests || length == op.length - at_)
    return length;
  auto from = op.lead + at_;
  auto border = (from + length) / digest_block_bytes * digest_block_bytes;
  return border > from ? border - from : 0;
}

void cutter::skip_finished_ops() {
  for (; op_ < what_->ops.size() && at_ == what_->ops[op_].length; ++op_)
    at_ = 0;
}

} // namespace millrace::transport::staged
