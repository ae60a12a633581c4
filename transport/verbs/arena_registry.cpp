// Registers each arena once, for the first caller that needs it.
// Called at start for shared arenas, and at the first transfer for others.
#include <millrace/core/log.hpp>
#include <millrace/transport/verbs/arena_registry.hpp>

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

namespace millrace::transport::verbs {

namespace {

bool may_be_pinned(const arena& a) {
  if (!a.is_file())
    return true;
  struct stat info {};
  struct statfs fs {};
  if (fstat(a.fd(), &info) != 0 || fstatfs(a.fd(), &fs) != 0)
    return false;
  return S_ISCHR(info.st_mode) || fs.f_type == TMPFS_MAGIC || fs.f_type == HUGETLBFS_MAGIC;
}

} // namespace

arena_registry::maker registering_with(device_list devices) {
  return [devices = std::move(devices)](const arena& a) {
    if (may_be_pinned(a))
      return registered_memory::add(devices, a.data(), a.size_bytes());
    return result<std::shared_ptr<registered_memory>>{fail(
      errc::unsupported,
      "RDMA devices cannot have files but those on tmpfs and DAX devices; the bytes take the way "
      "through staging memory")};
  };
}

result<std::shared_ptr<registered_memory>> arena_registry::find(const arena& a) const {
  std::lock_guard guard{mutex_};
  auto found = entries_.find(a.id());
  if (found == entries_.end() || found->second.making || !found->second.is_settled())
    return std::shared_ptr<registered_memory>{};
  return found->second.made;
}

result<std::shared_ptr<registered_memory>> arena_registry::add(const std::shared_ptr<arena>& a) {
  std::unique_lock guard{mutex_};
  auto& mine = entries_[a->id()];
  made_.wait(guard, [&] { return !mine.making; });
  if (!mine.what.expired() && mine.is_settled())
    return mine.made;
  mine.what = a;
  mine.making = true;
  guard.unlock();
  auto made = make_(*a);
  guard.lock();
  mine.making = false;
  settle(mine, std::move(made));
  made_.notify_all();
  return mine.made;
}

// Remembers the outcome. A registration that failed for lack of memory may succeed later, since the
// limit of locked memory counts for the whole process and may be raised from outside.
void arena_registry::settle(entry& mine, result<std::shared_ptr<registered_memory>> made) {
  mine.failed_until = time_point::max();
  mine.made = std::move(made);
  if (mine.made || mine.made.error().code() == errc::unsupported)
    return;
  mine.failed_until = steady_clock::now() + retry_after_;
  mine.made = fail(errc::unsupported, mine.made.error().detail());
  if (!std::exchange(lack_told_, true))
    log().warn(
      "staging memory not registered with RDMA devices; its transfers take another driver "
      "why=\"{}\"",
      mine.made.error().detail());
}

void arena_registry::sweep() {
  std::vector<std::shared_ptr<registered_memory>> gone; // freed without the lock
  std::lock_guard guard{mutex_};
  for (auto i = entries_.begin(); i != entries_.end();) {
    if (i->second.making || !i->second.what.expired()) {
      ++i;
      continue;
    }
    if (i->second.made)
      gone.push_back(std::move(*i->second.made));
    i = entries_.erase(i);
  }
}

} // namespace millrace::transport::verbs
