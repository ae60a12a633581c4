// The committer: one thread that makes changes of the index durable, in groups. Called by
// reservations and the bucket.
#pragma once

#include <millrace/core/status.hpp>
#include <millrace/storage/io/io_pool.hpp>
#include <millrace/storage/rocksdb/index.hpp>
#include <millrace/storage/rocksdb/segment_store.hpp>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace millrace::storage::rocksdb {

/// The outcome of a change.
struct commit_outcome {
  status why;
  /// The write itself failed, so after the next start the index may have the change or not.
  bool uncertain = false;
};

/// A change of the index. Its functions run on the committer's thread, one change at a time.
struct change {
  /// The model that changes. A group has at most one change of each model, so that a change sees
  /// the effect of earlier ones in the table. Empty: no model.
  std::string name;
  /// Which models change is decided by `stage`, so the change is a group of its own.
  bool alone = false;
  /// It removes models, or is the provider's own. Such a change may use all of the index's reserve,
  /// others half of it.
  bool removes = false;
  /// Segment files to make durable before the batch is written.
  std::vector<std::uint32_t> files;
  /// Adds mutations to the batch. An error ends this change only.
  std::function<status(index_batch&)> stage;
  /// Called once with the outcome. On success it updates the tables in memory.
  std::function<void(const commit_outcome&)> finish;
};

/// *Problem*: every durable change costs a flush of the device, whatever its size. All changes that
/// arrive during one flush share the next one. One thread makes all changes, so memory and index go
/// through the same states in the same order.
/// Threads: any may submit.
class committer {
public:
  committer(index& db, segment_store& space, const index_reserve& reserve);
  ~committer() { stop(); }

  void submit(change c);

  /// Finishes the changes that were submitted. A change's function may call it.
  void stop();

private:
  // Shared with the thread, which may outlive the committer if it destroys it.
  struct queue {
    std::mutex mutex;
    std::deque<change> changes;
    bool stopping = false;
  };

  // What changes are written to.
  struct target {
    index& db;
    segment_store& space;
    const index_reserve& reserve;
  };

  static void commit_some(queue& waiting, target to);
  static void commit(std::vector<change> group, target to);

  std::shared_ptr<queue> queue_ = std::make_shared<queue>();
  target to_;
  io::io_pool thread_{1, "the rocksdb bucket"};
};

} // namespace millrace::storage::rocksdb
