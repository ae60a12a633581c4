// Group commit: syncs the data once, writes one batch, reports to every change. Called by
// reservations and the bucket.
#include <millrace/core/kill_point.hpp>
#include <millrace/storage/rocksdb/committer.hpp>

#include <algorithm>
#include <map>
#include <set>

namespace millrace::storage::rocksdb {

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

// The bytes that may still be written to the index. RocksDB must never find out by itself that the
// file system is full: it takes no write after one that failed.
class write_budget {
public:
  explicit write_budget(const index_reserve& reserve)
    : available_(reserve.available_bytes()), kept_bytes_(reserve.size_bytes() / 2) {}

  status take(const change& c, std::uint64_t size_bytes) {
    if (!available_)
      return available_.error();
    auto kept = c.removes ? 0 : kept_bytes_;
    if (*available_ < kept || *available_ - kept < size_bytes)
      return {
        errc::no_space,
        "the file system has {} bytes left for the index, {} are needed and {} are kept to remove "
        "models; free space there",
        *available_, size_bytes, kept};
    *available_ -= size_bytes;
    return {};
  }

private:
  result<std::uint64_t> available_;
  std::uint64_t kept_bytes_;
};

// The log takes this for a mutation besides its key and value, at most.
constexpr std::uint64_t mutation_bytes = 64;

std::uint64_t written_bytes(const index_batch& batch, std::size_t first) {
  std::uint64_t sum = 0;
  for (auto i = first; i < batch.size(); ++i)
    sum += mutation_bytes + batch[i].key.size() + (batch[i].value ? batch[i].value->size() : 0);
  return sum;
}

index_batch stage(std::vector<change>& group, write_budget budget) {
  index_batch batch;
  std::erase_if(group, [&](change& c) {
    auto before = batch.size();
    auto outcome = c.stage(batch);
    if (outcome.ok() && batch.size() > before)
      outcome = budget.take(c, written_bytes(batch, before));
    if (outcome.ok())
      return false;
    batch.resize(before);
    c.finish({std::move(outcome)});
    return true;
  });
  return batch;
}

} // namespace

void committer::commit(std::vector<change> group, target to) {
  MILLRACE_KILL_POINT("rocksdb.publish.before_sync");
  sync_files(group, to.space);
  MILLRACE_KILL_POINT("rocksdb.publish.before_write");
  auto batch = stage(group, write_budget{to.reserve});
  commit_outcome outcome;
  if (!batch.empty()) {
    outcome.why = to.db.write(batch);
    outcome.uncertain = !outcome.why.ok();
  }
  MILLRACE_KILL_POINT("rocksdb.publish.after_write");
  for (auto& c : group)
    c.finish(outcome);
}

committer::committer(index& db, segment_store& space, const index_reserve& reserve)
  : to_{db, space, reserve} {}

// Each change has a job. The first one commits for those behind it. The lock is held while posting,
// so that no job is posted after `stop`.
void committer::submit(change c) {
  {
    std::lock_guard guard{queue_->mutex};
    if (!queue_->stopping) {
      queue_->changes.push_back(std::move(c));
      return thread_.post([waiting = queue_, to = to_](auto&) { commit_some(*waiting, to); });
    }
  }
  c.finish({{errc::unavailable, "the rocksdb bucket is closed"}});
}

void committer::commit_some(queue& waiting, target to) {
  std::unique_lock guard{waiting.mutex};
  auto group = take_group(waiting.changes);
  guard.unlock();
  if (!group.empty())
    commit(std::move(group), to);
}

void committer::stop() {
  {
    std::lock_guard guard{queue_->mutex};
    queue_->stopping = true;
  }
  thread_.stop();
}

} // namespace millrace::storage::rocksdb
