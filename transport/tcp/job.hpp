// One transfer in flight, cut into chunks that streams carry.
// Used by `peer_link`.
#pragma once

#include <millrace/transport/driver.hpp>
#include <millrace/transport/tcp/payload.hpp>

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

namespace millrace::transport::tcp {

class job;

/// Part of one op.
struct slice {
  const copy_op* op = nullptr;
  std::uint64_t first = 0; // within [0, op->length)
  std::uint64_t length = 0;
  std::uint64_t digests_at = 0; // where its first digest goes

  std::byte* local() const noexcept { return op->local + first; }
  std::uint64_t remote_offset() const noexcept { return op->remote_offset + first; }
};

/// The bytes of one request. Its holder may touch the memory, and gives the chunk back to its job.
struct chunk {
  std::shared_ptr<job> of;
  std::vector<slice> slices;
  std::uint64_t bytes = 0;
  std::uint32_t attempts = 0; // streams that broke while carrying it
};

/// Hands out the chunks of a transfer and collects their outcomes. Threads: any.
class job {
public:
  job(transfer t, completion<transfer_report> done);

  const transfer& what() const noexcept { return t_; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  /// Returns where the last op ends in the region; the largest number if an op's end overflows.
  std::uint64_t region_end() const noexcept { return region_end_; }
  std::vector<std::uint64_t>& digests() noexcept { return digests_; }
  /// Returns true if the lines that are filled must be written back.
  bool writes_back() const noexcept { return writes_back_; }

  /// Returns the next chunk to request, of at most `chunk_bytes` (at least a digest block); null if
  /// there is none.
  static std::unique_ptr<chunk> take(const std::shared_ptr<job>& j, std::uint64_t chunk_bytes);
  /// Returns true while `take` would return one.
  bool has_work() const;
  /// Returns a chunk that must be requested again.
  void put_back(std::unique_ptr<chunk> c);
  /// Ends a chunk. The last chunk to end completes the transfer.
  void end(std::unique_ptr<chunk> c, status outcome);
  /// Stops requesting chunks. The job ends once no stream has one of its chunks.
  void abandon(const status& why);

private:
  void cut(chunk& c, std::uint64_t chunk_bytes);
  void skip_finished_ops();
  void fail_locked(const status& why);
  void finish_if_over(std::unique_lock<std::mutex>& lock);

  transfer t_;
  std::uint64_t bytes_ = 0;
  std::uint64_t region_end_ = 0;
  bool writes_back_ = false;
  std::vector<std::uint64_t> digests_; // chunks write to disjoint parts

  mutable std::mutex mutex_;
  completion<transfer_report> done_; // null once run
  std::size_t op_ = 0;               // where the next chunk begins
  std::uint64_t at_ = 0;
  std::uint64_t digests_at_ = 0;
  bool cut_up_ = false;
  std::deque<std::unique_ptr<chunk>> returned_;
  std::uint64_t under_way_ = 0; // chunks taken, including returned ones
  status failure_;
};

/// The local memory of a chunk. Digests its blocks and writes its lines back as bytes pass.
class local_payload : public payload {
public:
  local_payload(const chunk& c, flow way) : chunk_(c), way_(way) {}

  std::size_t iovecs(std::span<iovec> out, std::uint64_t bytes_max) override;
  void passed(std::uint64_t size_bytes) override;

private:
  void digest_until(std::size_t slice_index, std::uint64_t at);

  const chunk& chunk_;
  const flow way_;
  std::size_t slice_ = 0;
  std::uint64_t at_ = 0; // in that slice
  std::size_t digest_slice_ = 0;
  std::uint64_t digest_block_ = 0; // in that slice
};

} // namespace millrace::transport::tcp
