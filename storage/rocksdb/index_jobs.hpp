// What RocksDB's threads would do, where a test simulates the machine. Run by the index.
#pragma once

#include <rocksdb/env.h>

#include <deque>
#include <memory>

namespace millrace::storage::rocksdb {

/// An environment without threads: RocksDB's jobs wait until `run`.
///
/// *Problem*: on a simulated machine one thread runs everything, so a call that waits for a job of
/// another thread would never end, and jobs beside it would make each run of a seed another one.
/// Threads: one.
class index_jobs final : public ::rocksdb::EnvWrapper {
public:
  /// Files are those of `files`.
  explicit index_jobs(std::unique_ptr<::rocksdb::Env> files);

  /// Runs the jobs that wait, and those that they make. RocksDB must not be in a call.
  void run();

  const char* Name() const override { return "millrace without threads"; }
  void Schedule(
    void (*work)(void*), void* of, Priority pool, void* tag, void (*drop)(void*)) override;
  int UnSchedule(void* tag, Priority pool) override;
  void StartThread(void (*work)(void*), void* of) override;
  unsigned int GetThreadPoolQueueLen(Priority pool) const override;
  void SetBackgroundThreads(int, Priority) override {}
  void IncBackgroundThreadsIfNeeded(int, Priority) override {}
  int GetBackgroundThreads(Priority) override { return 1; }

private:
  struct job {
    void (*work)(void*);
    void* of;
    Priority pool;
    void* tag;
    void (*drop)(void*);
  };

  std::deque<job> jobs_;
};

} // namespace millrace::storage::rocksdb
