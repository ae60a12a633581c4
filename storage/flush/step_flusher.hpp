// The step flusher: copies complete steps of a pool's checkpoints to slower storage. Called by the
// checkpoint manager.
#pragma once

#include <millrace/core/flush_counters.hpp>
#include <millrace/storage/checkpoint_store.hpp>
#include <millrace/storage/flush/version_flusher.hpp>

#include <memory>

namespace millrace::storage::flush {

struct step_flusher_options {
  std::string provider; // its name, for the log
  flush_options flush;
  std::uint64_t every = 1; // every n-th step is copied
};

/// Copies complete steps, all shards of a step together.
///
/// *Problem*: a version that is being copied keeps its slot, and a slow directory falls behind a
/// fast trainer. So one step is copied at a time, shard after shard, and at most one step of each
/// model waits with its slots held. Of the steps that become complete in the meantime, only the
/// newest is copied next. Shards get one slot more (`keep_min`), so that saves never wait for a
/// copy.
/// Threads: one of its own, which blocks as long as the directory's file system does; calls from
///          any.
class step_flusher {
public:
  /// Errors: those of opening the directory.
  static result<std::shared_ptr<step_flusher>> open(
    step_flusher_options options, std::shared_ptr<checkpoint_store> store);

  ~step_flusher();

  /// One slot is filled, one is copied, one stays.
  static constexpr std::uint32_t keep_min = 3;

  /// Tells that all shards of a step are done. Does not block.
  void saved(const std::string& model, std::uint64_t step);

  flush_counters counters() const;

  /// Refuses new steps and copies those that wait, until the deadline. Then it stops the copy in
  /// flight. A thread that the file system blocks is detached; it keeps what it reads, and does
  /// nothing more.
  /// Errors: `deadline_exceeded`.
  [[nodiscard]] status close(std::uint32_t deadline_ms);

private:
  class worker;

  explicit step_flusher(std::shared_ptr<worker> w);

  std::shared_ptr<worker> worker_;
};

} // namespace millrace::storage::flush
