// Cuts a transfer at digest blocks, and ends it.
#include <millrace/core/digest.hpp>
#include <millrace/transport/copy/copy.hpp>
#include <millrace/transport/tcp/job.hpp>
#include <millrace/transport/tcp/wire.hpp>

#include <algorithm>
#include <limits>

namespace millrace::transport::tcp {

namespace {

std::uint64_t covered(const copy_op& op) { return op.lead + op.length + op.tail; }

} // namespace

job::job(transfer t, completion<transfer_report> done) : t_(std::move(t)), done_(std::move(done)) {
  std::uint64_t digests = 0;
  for (auto& op : t_.ops) {
    bytes_ += op.length;
    auto room = std::numeric_limits<std::uint64_t>::max() - op.remote_offset;
    region_end_ = std::max(region_end_, op.remote_offset + std::min(op.length, room));
    if (op.length > room)
      region_end_ = std::numeric_limits<std::uint64_t>::max();
    digests += digest_count(covered(op));
  }
  if (t_.digests)
    digests_.resize(digests);
  writes_back_ = t_.write_back && t_.dir == direction::read && can_write_back();
}

std::unique_ptr<chunk> job::take(const std::shared_ptr<job>& j, std::uint64_t chunk_bytes) {
  std::lock_guard guard{j->mutex_};
  if (!j->failure_.ok())
    return nullptr;
  if (!j->returned_.empty()) {
    auto c = std::move(j->returned_.front());
    j->returned_.pop_front();
    return c;
  }
  if (j->cut_up_)
    return nullptr;
  auto c = std::make_unique<chunk>();
  c->of = j;
  j->cut(*c, chunk_bytes);
  ++j->under_way_;
  return c;
}

bool job::has_work() const {
  std::lock_guard guard{mutex_};
  return failure_.ok() && (!cut_up_ || !returned_.empty());
}

// Every digest block belongs to one chunk, so that the stream that carries the chunk can digest it
// alone.
void job::cut(chunk& c, std::uint64_t chunk_bytes) {
  skip_finished_ops();
  while (op_ < t_.ops.size() && c.slices.size() < ranges_max && c.bytes < chunk_bytes) {
    auto& op = t_.ops[op_];
    auto length = std::min(op.length - at_, chunk_bytes - c.bytes);
    auto from = op.lead + at_;
    if (t_.digests && length < op.length - at_) {
      auto border = (from + length) / digest_block_bytes * digest_block_bytes;
      length = border > from ? border - from : 0;
    }
    if (length == 0)
      break;
    c.slices.push_back({&op, at_, length, digests_at_ + from / digest_block_bytes});
    c.bytes += length;
    at_ += length;
    skip_finished_ops();
  }
  cut_up_ = op_ == t_.ops.size();
}

void job::skip_finished_ops() {
  for (; op_ < t_.ops.size() && at_ == t_.ops[op_].length; ++op_, at_ = 0)
    digests_at_ += digest_count(covered(t_.ops[op_]));
}

void job::put_back(std::unique_ptr<chunk> c) {
  std::unique_lock lock{mutex_};
  if (failure_.ok())
    returned_.push_back(std::move(c));
  else
    --under_way_;
  finish_if_over(lock);
}

void job::end(std::unique_ptr<chunk> c, status outcome) {
  auto keep = std::move(c->of);
  std::unique_lock lock{mutex_};
  --under_way_;
  if (!outcome.ok())
    fail_locked(outcome);
  finish_if_over(lock);
}

void job::abandon(const status& why) {
  std::unique_lock lock{mutex_};
  fail_locked(why);
  finish_if_over(lock);
}

void job::fail_locked(const status& why) {
  if (!failure_.ok() || !done_)
    return;
  failure_ = why;
  under_way_ -= returned_.size();
  returned_.clear();
}

void job::finish_if_over(std::unique_lock<std::mutex>& lock) {
  if (under_way_ > 0 || !done_ || (failure_.ok() && !cut_up_))
    return;
  auto done = std::exchange(done_, nullptr);
  auto hold = std::move(t_.hold);
  lock.unlock();
  hold.reset();
  if (!failure_.ok())
    return done(fail(failure_));
  done(transfer_report{std::move(digests_), "tcp", writes_back_});
}

std::size_t local_payload::iovecs(std::span<iovec> out, std::uint64_t bytes_max) {
  std::size_t n = 0;
  auto at = at_;
  for (auto i = slice_; i < chunk_.slices.size() && n < out.size() && bytes_max > 0; ++i, at = 0) {
    auto& s = chunk_.slices[i];
    auto length = std::min(s.length - at, bytes_max);
    out[n++] = {s.local() + at, length};
    bytes_max -= length;
    if (way_ == flow::out)
      digest_until(i, at + length);
  }
  return n;
}

void local_payload::passed(std::uint64_t size_bytes) {
  while (size_bytes > 0) {
    auto& s = chunk_.slices[slice_];
    auto length = std::min(s.length - at_, size_bytes);
    if (way_ == flow::in && chunk_.of->writes_back())
      write_back(s.local() + at_, length);
    at_ += length;
    size_bytes -= length;
    if (way_ == flow::in)
      digest_until(slice_, at_);
    if (at_ == s.length) {
      ++slice_;
      at_ = 0;
    }
  }
  if (way_ == flow::in && slice_ == chunk_.slices.size() && chunk_.of->writes_back())
    streaming_fence();
}

// Digests blocks while they are in the cache: before they are sent (all blocks that begin before
// `at`), or after they have arrived (all blocks that end there).
void local_payload::digest_until(std::size_t slice_index, std::uint64_t at) {
  if (!chunk_.of->what().digests || slice_index < digest_slice_)
    return;
  if (slice_index > digest_slice_) {
    digest_slice_ = slice_index;
    digest_block_ = 0;
  }
  auto& s = chunk_.slices[slice_index];
  auto in_op = s.op->lead + s.first; // the slice's first byte, counted from the first block's begin
  auto first_block = in_op / digest_block_bytes;
  while (true) {
    auto begin = (first_block + digest_block_) * digest_block_bytes;
    auto end = std::min(begin + digest_block_bytes, covered(*s.op));
    auto needed = way_ == flow::out ? begin + 1 : std::min(end, in_op + s.length);
    if (begin >= in_op + s.length || needed > in_op + at)
      return;
    const auto* block = s.op->local - s.op->lead + begin;
    chunk_.of->digests()[s.digests_at + digest_block_] = digest(block, end - begin);
    ++digest_block_;
  }
}

} // namespace millrace::transport::tcp
