// The cache of registrations: whole pages, the least recently used dropped first, none of unmapped
// memory returned. Called on movers when a peer asks for a region.
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
  std::vector<entry_ptr> dropped; // destroyed without the lock
  auto e = std::make_shared<entry>();
  {
    std::lock_guard guard{mutex_};
    note_unmapped();
    if (auto found = find(where))
      return lend(found);
    if (auto bad = make_room(where.size_bytes, dropped); !bad.ok())
      return fail(bad);
    // The entry is added before the registration is made, so that unmapping meanwhile is not
    // missed.
    e->where = where;
    e->users = 1;
    entries_.emplace(where.data, e);
    longest_bytes_ = std::max(longest_bytes_, where.size_bytes);
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
  drop_invalid(dropped);
}

void registration_cache::sweep() {
  std::vector<entry_ptr> dropped;
  std::lock_guard guard{mutex_};
  note_unmapped();
  drop_invalid(dropped);
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

// Entries overlap. An entry that touches the range may begin before it by the length of the longest
// entry.
template <class F>
registration_cache::entry_ptr registration_cache::first_touching(
  const memory_range& where, F wanted) {
  auto address = reinterpret_cast<std::uintptr_t>(where.data);
  auto first = reinterpret_cast<const std::byte*>(address - std::min(address, longest_bytes_));
  auto end = where.data + where.size_bytes;
  for (auto i = entries_.lower_bound(first); i != entries_.end() && i->first < end; ++i)
    if (i->second->where.overlaps(where) && wanted(i->second))
      return i->second;
  return nullptr;
}

void registration_cache::invalidate_locked(const memory_range& gone) {
  first_touching(gone, [](auto& e) {
    e->valid = false;
    return false;
  });
}

void registration_cache::drop_invalid(std::vector<entry_ptr>& dropped) {
  for (auto i = idle_.begin(); i != idle_.end();) {
    auto e = (i++)->second;
    if (!e->valid)
      remove_locked(e, dropped);
  }
}

registration_cache::entry_ptr registration_cache::find(const memory_range& where) {
  return first_touching(
    where, [&](auto& e) { return e->valid && e->value && e->where.covers(where); });
}

status registration_cache::make_room(std::uint64_t size_bytes, std::vector<entry_ptr>& dropped) {
  while (entries_.size() >= most_.entries_max || bytes_ + size_bytes > most_.bytes_max) {
    if (idle_.empty())
      return {
        errc::no_space,
        "registering {} bytes: {} registrations of {} bytes are in use; raise "
        "verbs.cache_entries_max or verbs.cache_max",
        size_bytes, entries_.size(), bytes_};
    remove_locked(idle_.begin()->second, dropped);
  }
  return {};
}

std::shared_ptr<void> registration_cache::lend(const entry_ptr& e) {
  if (e->users++ == 0)
    idle_.erase(e->used_at);
  e->used_at = ++clock_;
  return {e->value.get(), [self = shared_from_this(), e](void*) { self->give_back(e); }};
}

void registration_cache::give_back(const entry_ptr& e) {
  std::vector<entry_ptr> dropped;
  std::lock_guard guard{mutex_};
  if (--e->users == 0)
    e->valid && e->watched ? static_cast<void>(idle_.emplace(e->used_at, e))
                           : remove_locked(e, dropped);
}

// Takes `e` by value, since the caller's pointer may be the one in a list.
void registration_cache::remove_locked(entry_ptr e, std::vector<entry_ptr>& dropped) {
  auto [first, last] = entries_.equal_range(e->where.data);
  auto mine = std::find_if(first, last, [&](auto& other) { return other.second == e; });
  if (mine == last)
    return;
  entries_.erase(mine);
  if (e->users == 0)
    idle_.erase(e->used_at);
  bytes_ -= e->where.size_bytes;
  if (entries_.empty())
    longest_bytes_ = 0;
  // Unwatching a range ends the watch for every entry that shares it.
  auto shared = first_touching(e->where, [](auto&) { return true; }) != nullptr;
  if (e->watched && !shared)
    hooks_.unwatch(e->where);
  dropped.push_back(std::move(e));
}

} // namespace millrace::transport::verbs
