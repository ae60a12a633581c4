// Runs a transfer in chunks. Each chunk holds a lease on the region; digests are computed while a
// block is in the cache.
#include <millrace/core/digest.hpp>
#include <millrace/core/kill_point.hpp>
#include <millrace/transport/copy/copy.hpp>
#include <millrace/transport/copy/copy_job.hpp>
#include <millrace/transport/copy/digest_copy.hpp>
#include <millrace/transport/memory/memory_distance.hpp>

#include <algorithm>
#include <mutex>
#include <optional>

namespace millrace::transport {

namespace {

// The bound of one job, whatever its size.
constexpr std::uint64_t chunks_max = 1u << 20;

// A part of one op that one mover copies. `digests_at` is the place of its first digest.
struct slice {
  const copy_op* op;
  std::uint64_t first; // within [0, op->length)
  std::uint64_t length;
  std::uint64_t digests_at;
};

std::uint64_t digests_of(const copy_op& op) { return digest_count(op.lead + op.length + op.tail); }

// Cuts the ops at digest blocks, one slice per call: a list of all slices may be far longer than
// that of the ops.
class cutter {
public:
  // A position between two slices.
  struct place {
    std::size_t op = 0;
    std::uint64_t at = 0;      // in that op
    std::uint64_t digests = 0; // the number of digests of the ops before it
  };

  cutter(const copy_list& ops, std::uint64_t slice_bytes) : ops_(&ops), slice_bytes_(slice_bytes) {}

  std::optional<slice> next(place& p) const {
    for (; p.op < ops_->size(); ++p.op, p.at = 0) {
      auto& op = (*ops_)[p.op];
      if (p.at < op.length) {
        auto block_at = (op.lead + p.at) % digest_block_bytes;
        auto length = std::min(op.length - p.at, slice_bytes_ - block_at);
        slice out{&op, p.at, length, p.digests + (op.lead + p.at) / digest_block_bytes};
        p.at += length;
        return out;
      }
      p.digests += digests_of(op);
    }
    return std::nullopt;
  }

private:
  const copy_list* ops_;
  std::uint64_t slice_bytes_;
};

// The slices that one mover copies in one turn.
using chunk = std::vector<slice>;

class running_job {
public:
  running_job(copy_job job, const copy_limits& limits, completion<copied> done)
    : job_(std::move(job)), done_(std::move(done)) {
    std::uint64_t digests = 0;
    for (auto& op : job_.ops) {
      total_ += op.length;
      digests += digests_of(op);
    }
    if (job_.digests)
      digests_.resize(digests);
    written_back_ = job_.write_back && job_.dir == direction::read && can_write_back();
    mode_ = written_back_             ? store_mode::written_back
      : total_ >= streaming_bytes_min ? store_mode::streaming
                                      : store_mode::cached;
    chunk_bytes_ = whole_blocks(std::max(limits.chunk_bytes, total_ / chunks_max));
  }

  std::uint64_t total_bytes() const { return total_; }

  // At least as many as there are: each chunk but the last has at least `chunk_bytes_`.
  std::uint32_t chunks() const {
    return static_cast<std::uint32_t>(
      std::max((total_ + chunk_bytes_ - 1) / chunk_bytes_, std::uint64_t{1}));
  }

  // `near_memory`: on a processor near the bytes that are written.
  void run(std::uint32_t index, bool near_memory) {
    auto part = take();
    if (part.empty() && index > 0)
      return;
    if (failed_ || (job_.abandoned && *job_.abandoned))
      return note(status{errc::cancelled, "the transfer was abandoned"});
    auto lease = job_.memory.lease();
    if (!lease)
      return note(lease.error());
    if (near_memory && !part.empty() && lease->memory().on_host())
      stay_near_memory(target_of(part.front(), lease->memory()));
    auto outcome = copy(part, lease->memory());
    if (!outcome.ok())
      return note(std::move(outcome));
    if (mode_ != store_mode::cached)
      streaming_fence();
  }

  void finish() {
    job_.hold.reset();
    if (failed_)
      done_(fail(why_));
    else
      done_(copied{std::move(digests_), written_back_});
  }

private:
  static std::uint64_t whole_blocks(std::uint64_t bytes) {
    return std::max(bytes / digest_block_bytes, std::uint64_t{1}) * digest_block_bytes;
  }

  // Returns the next chunk. Any mover may call it. Small ops share one chunk.
  chunk take() {
    cutter cut{job_.ops, chunk_bytes_};
    chunk out;
    std::lock_guard guard{mutex_};
    for (std::uint64_t bytes = 0; bytes < chunk_bytes_;) {
      auto s = cut.next(next_);
      if (!s)
        break;
      bytes += s->length;
      out.push_back(*s);
    }
    return out;
  }

  // Returns where the slice goes, or null if the region has it in no one place.
  std::byte* target_of(const slice& s, const gather_list& memory) const {
    return job_.dir == direction::read ? s.op->local + s.first
                                       : memory.dense_at(s.op->remote_offset + s.first, 1);
  }

  // Includes the bytes around the slice that its first and last digest cover.
  status prepare(const slice& s) const {
    if (!job_.prepare)
      return {};
    auto lead = job_.digests && s.first == 0 ? s.op->lead : 0;
    auto tail = job_.digests && s.first + s.length == s.op->length ? s.op->tail : 0;
    return job_.prepare(s.op->local + s.first - lead, lead + s.length + tail);
  }

  status copy(const chunk& part, const gather_list& memory) {
    for (auto& s : part) {
      if (auto bad = prepare(s); !bad.ok())
        return bad;
      if (memory.on_host())
        copy(s, memory);
      MILLRACE_KILL_POINT("mover.slice");
    }
    return memory.on_host() ? status{} : copy_by_devices(part, memory);
  }

  void copy(const slice& s, const gather_list& memory) {
    if (!job_.digests)
      return move_bytes(s, 0, s.length, memory);
    // Goes block by block: the digest reads the block from memory, and the copy reads it from the
    // cache. Whole blocks that follow each other on both sides are copied at once.
    auto digest_at = s.digests_at;
    for (std::uint64_t at = 0; at < s.length;) {
      auto block_at = (s.op->lead + s.first + at) % digest_block_bytes;
      auto length = std::min(s.length - at, digest_block_bytes - block_at);
      auto whole = (s.length - at) / digest_block_bytes * digest_block_bytes;
      auto remote_at = s.op->remote_offset + s.first + at;
      auto* remote = block_at == 0 && whole > length ? memory.dense_at(remote_at, whole) : nullptr;
      if (remote)
        length = whole;
      else
        remote = memory.dense_at(remote_at, length);
      copy_blocks(s, at, length, digest_at, remote, memory);
      at += length;
      digest_at += digest_count(length);
    }
  }

  // Gives the chunk to the device at once, then does the work that other memory gets block by
  // block.
  status copy_by_devices(const chunk& part, const gather_list& memory) {
    device_batch batch{job_.dir == direction::read ? device_way::to_host : device_way::from_host};
    for (auto& s : part)
      memory.copy_in_batch(batch, s.op->remote_offset + s.first, s.op->local + s.first, s.length);
    if (auto bad = batch.finish(); !bad.ok())
      return bad;
    for (auto& s : part) {
      if (job_.digests)
        digest_local(s);
      if (written_back_)
        write_back(s.op->local + s.first, s.length);
    }
    return {};
  }

  void digest_local(const slice& s) {
    auto* blocks = s.op->local - s.op->lead;
    auto end = s.op->lead + s.first + s.length;
    auto covered = s.op->lead + s.op->length + s.op->tail;
    auto first = (s.op->lead + s.first) / digest_block_bytes;
    for (auto block = first; block * digest_block_bytes < end; ++block) {
      auto at = block * digest_block_bytes;
      digests_[s.digests_at + block - first] =
        digest(blocks + at, std::min(digest_block_bytes, covered - at));
    }
  }

  // Copies a part of one block, or several whole blocks. `remote` is their address if they are
  // dense in memory, else null.
  void copy_blocks(
    const slice& s, std::uint64_t at, std::uint64_t length, std::uint64_t digest_at,
    std::byte* remote, const gather_list& memory) {
    auto* local = s.op->local + s.first + at;
    auto covered_at = s.op->lead + s.first + at;
    auto block_start = covered_at / digest_block_bytes * digest_block_bytes;
    auto block_end =
      std::min(block_start + digest_block_bytes, s.op->lead + s.op->length + s.op->tail);
    auto* digests = &digests_[digest_at];
    if (remote && length >= block_end - block_start)
      return job_.dir == direction::read ? copy_and_digest(local, remote, length, mode_, digests)
                                         : copy_and_digest(remote, local, length, mode_, digests);
    // Only the local side has bytes around the range. The job must not read around it in the
    // region.
    move_bytes(s, at, length, memory);
    *digests = digest(local - (covered_at - block_start), block_end - block_start);
  }

  void move_bytes(
    const slice& s, std::uint64_t at, std::uint64_t length, const gather_list& memory) {
    auto remote = s.op->remote_offset + s.first + at;
    auto* local = s.op->local + s.first + at;
    // A strided source is digested after it has arrived, so it should stay in the cache.
    if (job_.dir == direction::read)
      memory.read(remote, local, length, mode_);
    else
      memory.write(remote, local, length, mode_);
  }

  void note(status why) {
    std::lock_guard guard{mutex_};
    if (!failed_)
      why_ = std::move(why);
    failed_ = true;
  }

  copy_job job_;
  completion<copied> done_;
  std::uint64_t total_ = 0;
  bool written_back_ = false;
  store_mode mode_ = store_mode::cached;
  std::uint64_t chunk_bytes_ = 0;
  std::vector<std::uint64_t> digests_;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  cutter::place next_; // `mutex_` guards this and the members below
  status why_;
};

} // namespace

status check_ops(std::span<const copy_op> ops, std::uint64_t region_bytes) {
  for (auto& op : ops)
    if (op.remote_offset > region_bytes || op.length > region_bytes - op.remote_offset)
      return {
        errc::permission_denied, "bytes {} to +{} lie outside the region of {} bytes",
        op.remote_offset, op.length, region_bytes};
  return {};
}

void run_copy_job(
  mover_pool& movers, const copy_limits& limits, copy_job job, completion<copied> done) {
  auto on_host = job.memory.devices().empty();
  // Preparing may wait for a disk.
  auto waits = !on_host || job.prepare != nullptr;
  auto kind = class_for(job.dir);
  auto running = std::make_shared<running_job>(std::move(job), limits, std::move(done));
  if (!waits && running->total_bytes() <= limits.inline_bytes_max) {
    for (std::uint32_t i = 0; i < running->chunks(); ++i)
      running->run(i, false);
    return running->finish();
  }
  auto& pool = on_host ? movers : movers.devices();
  pool.submit(
    running->chunks(),
    [running, near = limits.near_memory](std::uint32_t i) { running->run(i, near); },
    [running] { running->finish(); }, kind);
}

} // namespace millrace::transport
