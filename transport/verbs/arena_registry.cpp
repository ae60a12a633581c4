// One registration an arena, made by whoever needs it first.
// Called at start for shared arenas, and for the first transfer of others.
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

result<std::shared_ptr<registered_memory>> registered(const device_list& devices, const arena& a) {
  if (!may_be_pinned(a))
    return fail(
      errc::unsupported,
      "RDMA devices cannot have files but those on tmpfs and DAX devices; the bytes take the way "
      "through staging memory");
  return registered_memory::add(devices, a.data(), a.size_bytes());
}

} // namespace

result<std::shared_ptr<registered_memory>> arena_registry::find(const arena& a) const {
  std::lock_guard guard{mutex_};
  auto found = entries_.find(a.id());
  if (found == entries_.end() || found->second.making)
    return std::shared_ptr<registered_memory>{};
  return found->second.made;
}

result<std::shared_ptr<registered_memory>> arena_registry::add(const std::shared_ptr<arena>& a) {
  std::unique_lock guard{mutex_};
  auto& mine = entries_[a->id()];
  made_.wait(guard, [&] { return !mine.making; });
  if (!mine.what.expired() && (!mine.made || *mine.made))
    return mine.made;
  mine.what = a;
  mine.making = true;
  guard.unlock();
  auto made = registered(devices_, *a);
  guard.lock();
  mine.making = false;
  // What lacked room now may find it later.
  if (made || made.error().code() == errc::unsupported)
    mine.made = made;
  made_.notify_all();
  return made;
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
