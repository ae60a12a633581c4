// Least recently used, whole pages, and never what was unmapped.
// Called on movers when a peer asks for a region.
#include <millrace/transport/verbs/registration_cache.hpp>

#include <unistd.h>

#include <algorithm>

namespace millrace::transport::verbs {

namespace {

memory_range whole_pages(std::byte* data, std::uint64_t size_bytes) {
  static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  auto first = reinterpret_cast<std::uintptr_t>(data) / page * page;
  auto last = (reinterpret_cast<std::uintptr_t>(data) + size_bytes + page - 1) / page * page;
  return {reinterpret_cast<std::byte*>(first), last - first};
}

} // namespace

registration_cache::registration_cache(const bounds& most, hooks h)
  : most_(most), hooks_(std::move(h)) {}

result<std::shared_ptr<void>> registration_cache::acquire(
  std::byte* data, std::uint64_t size_bytes) {
  auto where = whole_pages(data, size_bytes);
  std::vector<entry_ptr> dropped; // ends without the lock
  auto e = std::make_shared<entry>();
  {
    std::lock_guard guard{mutex_};
    note_unmapped();
    if (auto found = find(where))
      return lend(found);
    if (auto bad = make_room(where.size_bytes, dropped); !bad.ok())
      return fail(bad);
    // Entered before it is made, so that what is unmapped meanwhile is not missed.
    e->where = where;
    e->users = 1;
    entries_.push_back(e);
    bytes_ += where.size_bytes;
  }
  dropped.clear();
  e->watched = hooks_.watch(where);
  auto made = hooks_.make(where);
  std::lock_guard guard{mutex_};
  --e->users;
  if (!made) {
    remove_locked(e, dropped);
    return fail(made.error());
  }
  e->value = std::move(*made);
  return lend(e);
}

void registration_cache::invalidate(const std::byte* data, std::uint64_t size_bytes) {
  std::vector<entry_ptr> dropped;
  std::lock_guard guard{mutex_};
  invalidate_locked({const_cast<std::byte*>(data), size_bytes});
  for (auto& e : std::vector<entry_ptr>{entries_})
    if (!e->valid && e->users == 0)
      remove_locked(e, dropped);
}

void registration_cache::sweep() {
  std::vector<entry_ptr> dropped;
  std::lock_guard guard{mutex_};
  note_unmapped();
  for (auto& e : std::vector<entry_ptr>{entries_})
    if (!e->valid && e->users == 0)
      remove_locked(e, dropped);
}

std::uint64_t registration_cache::entries() const {
  std::lock_guard guard{mutex_};
  return entries_.size();
}

std::uint64_t registration_cache::bytes() const {
  std::lock_guard guard{mutex_};
  return bytes_;
}

void registration_cache::note_unmapped() {
  std::vector<memory_range> gone;
  hooks_.unmapped(gone);
  for (auto& range : gone)
    invalidate_locked(range);
}

void registration_cache::invalidate_locked(const memory_range& gone) {
  for (auto& e : entries_)
    if (e->where.overlaps(gone))
      e->valid = false;
}

registration_cache::entry_ptr registration_cache::find(const memory_range& where) {
  for (auto& e : entries_)
    if (e->valid && e->value && e->where.covers(where))
      return e;
  return nullptr;
}

status registration_cache::make_room(std::uint64_t size_bytes, std::vector<entry_ptr>& dropped) {
  while (entries_.size() >= most_.entries_max || bytes_ + size_bytes > most_.bytes_max) {
    entry_ptr oldest;
    for (auto& e : entries_)
      if (e->users == 0 && (!oldest || e->used_at < oldest->used_at))
        oldest = e;
    if (!oldest)
      return {
        errc::no_space,
        "registering " + std::to_string(size_bytes) + " bytes: " + std::to_string(entries_.size()) +
          " registrations of " + std::to_string(bytes_) +
          " bytes are in use; raise verbs.cache_entries_max or verbs.cache_bytes_max"};
    remove_locked(oldest, dropped);
  }
  return {};
}

std::shared_ptr<void> registration_cache::lend(const entry_ptr& e) {
  ++e->users;
  e->used_at = ++clock_;
  return {e->value.get(), [self = shared_from_this(), e](void*) { self->give_back(e); }};
}

void registration_cache::give_back(const entry_ptr& e) {
  std::vector<entry_ptr> dropped;
  std::lock_guard guard{mutex_};
  if (--e->users == 0 && (!e->valid || !e->watched))
    remove_locked(e, dropped);
}

void registration_cache::remove_locked(const entry_ptr& e, std::vector<entry_ptr>& dropped) {
  auto mine = std::find(entries_.begin(), entries_.end(), e);
  if (mine == entries_.end())
    return;
  entries_.erase(mine);
  bytes_ -= e->where.size_bytes;
  // Watching a range ends for all who share it.
  auto shared = std::any_of(
    entries_.begin(), entries_.end(), [&](auto& other) { return other->where.overlaps(e->where); });
  if (e->watched && !shared)
    hooks_.unwatch(e->where);
  dropped.push_back(e);
}

} // namespace millrace::transport::verbs
