// Reads of working sets that cannot be mapped here: transfers into registered memory, asked for in
// stages. Each client has one, so that all its reads share the network. Used by `set_view`.
#pragma once

#include <millrace/actors/loader/read_pacer.hpp>
#include <millrace/core/bulk_handle.hpp>
#include <millrace/core/memory.hpp>
#include <millrace/core/status.hpp>
#include <millrace/core/working_set.hpp>
#include <millrace/transport/fabric.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace millrace::runtime {

/// Some bytes of a region, and where they go.
struct remote_part {
  const bulk_handle* from = nullptr;
  std::uint64_t offset = 0; // in the region
  std::uint64_t length = 0;
  std::byte* to = nullptr;
};

struct remote_read {
  std::vector<remote_part> parts;
  std::span<std::byte> into = {};             // the memory that they all go to
  std::shared_ptr<const void> keep = nullptr; // the handles
  /// Set by who wants no more of it: what was not asked for yet fails with `cancelled`.
  std::shared_ptr<const std::atomic<bool>> stop = nullptr;
};

/// What a client's reads of other hosts are allowed, and do.
struct remote_counts {
  std::uint64_t limit_bytes = 0;
  std::uint64_t inflight_bytes = 0;
  std::uint64_t inflight_stages = 0;
  std::uint64_t stages = 0; // begun
};

/// Memory that is not registered is filled from a staging block, in one copy more. There is a
/// bounded amount of it (`reading.staging`), which is made for the first read that needs it. Reads
/// are served in the order in which they came.
///
/// Threads: any.
class remote_reads : public std::enable_shared_from_this<remote_reads> {
public:
  remote_reads(std::shared_ptr<transport::fabric> fabric, const actors::read_options& options);

  /// Reads. `done` runs once nothing writes to the memory any more.
  /// Errors:  those of `fabric::submit`; `no_space` when there can be no staging memory;
  ///          `cancelled`.
  void read(remote_read what, completion<void> done);

  remote_counts counts();

  /// Returns after what time a part whose data server was lost is opened again.
  std::chrono::milliseconds retry() const noexcept {
    return std::chrono::milliseconds{options_.retry_ms};
  }

private:
  struct reading;
  struct stage;
  using stage_ptr = std::shared_ptr<stage>;

  void make_staging();
  void pump();
  stage_ptr take(std::vector<std::shared_ptr<reading>>& over);
  void leave_out_stopped(std::vector<std::shared_ptr<reading>>& over);
  bool find_memory(stage& s);
  void begin(const stage_ptr& s);
  void moved(const stage_ptr& s, const result<void>& outcome);
  void end(const stage_ptr& s, const status& why);

  const std::shared_ptr<transport::fabric> fabric_;
  const actors::read_options options_;
  std::mutex mutex_; // guards the members below
  actors::read_pacer pacer_;
  std::deque<std::shared_ptr<reading>> waiting_; // they have parts that were not asked for
  std::shared_ptr<memory_source> staging_;
  status no_staging_; // why there is none
  bool makes_staging_ = false;
  std::size_t staged_ = 0; // stages that have a block
  bool pumping_ = false;
};

} // namespace millrace::runtime
