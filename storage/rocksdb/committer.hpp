// One thread that makes changes of the index durable, in groups. Asked by reservations and the
// bucket.
#pragma once

#include <millrace/core/status.hpp>
#include <millrace/storage/rocksdb/index.hpp>
#include <millrace/storage/rocksdb/segment_store.hpp>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace millrace::storage::rocksdb {

/// How a change ended.
struct commit_outcome {
  status why;
  /// The write itself failed: after the next start the index may show the change, or not.
  bool uncertain = false;
};

/// A change of the index. Its functions run on the committer's thread, one change at a time.
struct change {
  /// The model concerned: a group has at most one change of each, so that a change sees in the
  /// table what earlier ones did. Empty: concerns none.
  std::string name;
  /// Concerns models not known yet, and makes a group of its own.
  bool alone = false;
  /// Segment files to make durable before the batch is written.
  std::vector<std::uint32_t> files;
  /// Adds what shall be written; an error ends this change and no other.
  std::function<status(index_batch&)> stage;
  /// Told once how it ended; on success this is where memory learns of it.
  std::function<void(const commit_outcome&)> finish;
};

/// *Problem*: every durable change costs a flush of the device, whatever its size. All changes that
/// arrive during one flush share the next one; and since one thread makes them all, memory and
/// index go through the same states in the same order.
/// Threads: any may submit.
class committer {
public:
  committer(index& db, segment_store& space);
  ~committer() { stop(); }

  void submit(change c);

  /// Finishes what was submitted. A change's function may call it.
  void stop();

private:
  // Shared with the thread, which may outlive the committer when it is the one that drops it.
  struct queue {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<change> changes;
    bool stopping = false;
  };

  static void run(const std::shared_ptr<queue>& waiting, index& db, segment_store& space);

  std::shared_ptr<queue> queue_ = std::make_shared<queue>();
  index& db_;
  segment_store& space_;
  std::thread thread_;
};

} // namespace millrace::storage::rocksdb
