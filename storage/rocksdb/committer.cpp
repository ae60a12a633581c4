// Group commit: syncs the data once, writes one batch, reports to every change. Called by
// reservations and the bucket.
#include <millrace/core/kill_point.hpp>
#include <millrace/storage/io/io_pool.hpp>
#include <millrace/storage/rocksdb/committer.hpp>

#include <algorithm>
#include <map>
#include <set>

namespace millrace::storage::rocksdb {

using namespace io;

namespace {

constexpr std::size_t group_max = 256;

std::vector<change> take_group(std::deque<change>& changes) {
  std::vector<change> group;
  std::set<std::string> names;
  while (!changes.empty() && group.size() < group_max) {
    auto& next = changes.front();
    auto alone = next.alone;
    if (alone && !group.empty())
      break;
    if (!next.name.empty() && !names.insert(next.name).second)
      break;
    group.push_back(std::move(next));
    changes.pop_front();
    if (alone)
      break;
  }
  return group;
}

// Data first: what the index names must be on disk before the index names it.
void sync_files(std::vector<change>& group, segment_store& space) {
  std::map<std::uint32_t, status> synced;
  for (auto& c : group)
    for (auto file : c.files)
      if (!synced.count(file))
        synced.emplace(file, space.sync(file));
  std::erase_if(group, [&](change& c) {
    auto bad = std::find_if(
      c.files.begin(), c.files.end(), [&](auto file) { return !synced.at(file).ok(); });
    if (bad == c.files.end())
      return false;
    c.finish({synced.at(*bad)});
    return true;
  });
}

index_batch stage(std::vector<change>& group) {
  index_batch batch;
  std::erase_if(group, [&](change& c) {
    auto before = batch.size();
    auto outcome = c.stage(batch);
    if (outcome.ok())
      return false;
    batch.resize(before);
    c.finish({std::move(outcome)});
    return true;
  });
  return batch;
}

void commit(std::vector<change> group, index& db, segment_store& space) {
  MILLRACE_KILL_POINT("rocksdb.publish.before_sync");
  sync_files(group, space);
  MILLRACE_KILL_POINT("rocksdb.publish.before_write");
  auto batch = stage(group);
  commit_outcome outcome;
  if (!batch.empty()) {
    outcome.why = db.write(batch);
    outcome.uncertain = !outcome.why.ok();
  }
  MILLRACE_KILL_POINT("rocksdb.publish.after_write");
  for (auto& c : group)
    c.finish(outcome);
}

} // namespace

committer::committer(index& db, segment_store& space) : db_(db), space_(space) {
  thread_ = std::thread{[waiting = queue_, &db, &space] { run(waiting, db, space); }};
}

void committer::submit(change c) {
  {
    std::lock_guard guard{queue_->mutex};
    if (!queue_->stopping) {
      queue_->changes.push_back(std::move(c));
      queue_->changed.notify_one();
      return;
    }
  }
  c.finish({{errc::unavailable, "the rocksdb bucket is closed"}});
}

void committer::run(const std::shared_ptr<queue>& waiting, index& db, segment_store& space) {
  for (;;) {
    std::unique_lock guard{waiting->mutex};
    waiting->changed.wait(guard, [&] { return waiting->stopping || !waiting->changes.empty(); });
    if (waiting->changes.empty())
      return;
    auto group = take_group(waiting->changes);
    guard.unlock();
    commit(std::move(group), db, space);
  }
}

void committer::stop() {
  {
    std::lock_guard guard{queue_->mutex};
    queue_->stopping = true;
  }
  queue_->changed.notify_all();
  auto own = thread_.joinable() && thread_.get_id() == std::this_thread::get_id();
  join_or_detach(thread_);
  // Called by a change: finish the changes behind it here, before the index is closed.
  if (own)
    run(queue_, db_, space_);
}

} // namespace millrace::storage::rocksdb
