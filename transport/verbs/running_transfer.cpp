// Looks up keys, and digests block by block.
// Called on the completion thread; the digests run on movers.
#include <millrace/core/digest.hpp>
#include <millrace/transport/copy/copy.hpp>
#include <millrace/transport/verbs/running_transfer.hpp>

#include <algorithm>

namespace millrace::transport::verbs {

key_set key_set::of(const granted& m) {
  key_set out;
  out.region_bytes = m.region_bytes;
  std::uint64_t end = 0;
  for (auto& r : m.ranges) {
    out.range_ends.push_back(end += r.length);
    out.addresses.push_back(r.address);
  }
  for (std::size_t i = 0; i < m.pairs.size(); ++i) {
    pair_keys keys{m.pairs[i].pair, m.pairs[i].generation, m.pairs[i].way, {}};
    keys.keys.reserve(m.ranges.size());
    for (auto& r : m.ranges)
      keys.keys.push_back(r.keys[i]);
    out.pairs.push_back(std::move(keys));
  }
  return out;
}

const key_set::pair_keys* key_set::over(
  std::uint32_t pair, std::uint32_t generation) const noexcept {
  for (auto& p : pairs)
    if (p.pair == pair && p.generation == generation)
      return &p;
  return nullptr;
}

namespace {

// One digest block of one op, or the op's part of it.
struct block {
  const std::byte* data; // the block's first byte
  std::uint64_t length;
  const std::byte* own; // the part that the op itself covers
  std::uint64_t own_length;
};

class settling {
public:
  settling(std::shared_ptr<running_transfer> t, bool write_back, const copy_limits& limits)
    : t_(std::move(t)), write_back_(write_back) {
    for (auto& op : t_->what.ops)
      cut(op);
    blocks_per_chunk_ = std::max<std::uint64_t>(limits.chunk_bytes / digest_block_bytes, 1);
    if (t_->what.digests)
      out_.digests.resize(blocks_.size());
    out_.written_back = write_back;
  }

  std::uint32_t chunks() const {
    return static_cast<std::uint32_t>((blocks_.size() + blocks_per_chunk_ - 1) / blocks_per_chunk_);
  }

  void run(std::uint32_t chunk) {
    auto first = chunk * blocks_per_chunk_;
    auto last = std::min<std::uint64_t>(first + blocks_per_chunk_, blocks_.size());
    for (auto i = first; i < last; ++i) {
      auto& b = blocks_[i];
      if (t_->what.digests)
        out_.digests[i] = digest(b.data, b.length);
      if (write_back_)
        transport::write_back(b.own, b.own_length);
    }
    if (write_back_)
      streaming_fence();
  }

  copied take() { return std::move(out_); }

private:
  void cut(const copy_op& op) {
    auto covered = op.lead + op.length + op.tail;
    auto* start = op.local - op.lead;
    for (std::uint64_t at = 0; at < covered; at += digest_block_bytes) {
      auto length = std::min(covered - at, digest_block_bytes);
      auto own_first = std::clamp(op.lead, at, at + length);
      auto own_last = std::clamp(op.lead + op.length, at, at + length);
      blocks_.push_back({start + at, length, start + own_first, own_last - own_first});
    }
  }

  std::shared_ptr<running_transfer> t_;
  const bool write_back_;
  std::uint64_t blocks_per_chunk_ = 1;
  std::vector<block> blocks_;
  copied out_;
};

} // namespace

void settle(
  mover_pool& movers, const copy_limits& limits, std::shared_ptr<running_transfer> t,
  bool write_back, completion<copied> done) {
  auto s = std::make_shared<settling>(std::move(t), write_back, limits);
  movers.submit(
    s->chunks(), [s](std::uint32_t i) { s->run(i); },
    [s, done = std::move(done)] { done(s->take()); });
}

} // namespace millrace::transport::verbs
