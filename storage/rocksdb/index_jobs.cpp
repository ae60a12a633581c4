// A queue in place of RocksDB's threads. Called by RocksDB and the index.
#include <millrace/core/assert.hpp>
#include <millrace/storage/rocksdb/index_jobs.hpp>

#include <algorithm>
#include <functional>

namespace millrace::storage::rocksdb {

index_jobs::index_jobs(std::unique_ptr<::rocksdb::Env> files) : EnvWrapper(std::move(files)) {
  file_system_ = target()->GetFileSystem();
}

void index_jobs::run() {
  while (!jobs_.empty()) {
    auto next = jobs_.front();
    jobs_.pop_front();
    next.work(next.of);
  }
}

void index_jobs::Schedule(
  void (*work)(void*), void* of, Priority pool, void* tag, void (*drop)(void*)) {
  jobs_.push_back({work, of, pool, tag, drop});
}

int index_jobs::UnSchedule(void* tag, Priority pool) {
  auto matches = [=](const job& j) { return j.tag == tag && j.pool == pool; };
  auto last = std::stable_partition(jobs_.begin(), jobs_.end(), std::not_fn(matches));
  std::deque<job> dropped{last, jobs_.end()};
  jobs_.erase(last, jobs_.end());
  for (auto& j : dropped)
    if (j.drop)
      j.drop(j.of);
  return static_cast<int>(dropped.size());
}

// A thread of its own would be one too many.
void index_jobs::StartThread(void (*)(void*), void*) { MILLRACE_ASSERT(false); }

unsigned int index_jobs::GetThreadPoolQueueLen(Priority pool) const {
  return static_cast<unsigned int>(std::ranges::count(jobs_, pool, &job::pool));
}

} // namespace millrace::storage::rocksdb
