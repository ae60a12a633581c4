// All objects of a version are reserved before a byte of it arrives, so that it can be finished in a full pool.
#include <millrace/core/kill_point.hpp>
#include <millrace/storage/pmem/care/erase.hpp>
#include <millrace/storage/pmem/catalog.hpp>
#include <millrace/storage/pmem/repository_space.hpp>

#include <algorithm>

namespace millrace::storage::pmem {

namespace {

// Needs `layout_mutex`.
status reserve_objects(core& c, stored_version& v, std::uint64_t body_bytes) {
  auto& into = v.reserved.emplace(*c.objects);
  auto made = reserve_slot(c, into, v, 0);
  if (!made)
    return made.error();
  v.slots[0] = std::move(*made);
  c.persist.fence(); // another thread may publish
  auto index = into.reserve(sizeof(index_header) + body_bytes, object_type::stored_index);
  if (!index)
    return index.error();
  v.index = *index;
  v.index_bytes = into.reserved_bytes();
  if (*c.stored_bytes + v.heap_bytes() > capacity_of(c))
    return {errc::no_space, "the repository is full"};
  return {};
}

status try_take(core& c, stored_version& v, std::uint64_t body_bytes, std::uint64_t& asked) {
  std::lock_guard guard{c.layout_mutex};
  auto outcome = reserve_objects(c, v, body_bytes);
  MILLRACE_KILL_POINT("pmem.store.reserved");
  if (outcome.ok()) {
    v.taken = {c.stored_bytes, v.heap_bytes()};
    return outcome;
  }
  asked = std::max(v.shape->packed.stream_bytes + body_bytes, v.heap_bytes());
  v.reserved.reset();
  v.slots[0] = {};
  v.index = v.index_bytes = 0;
  return outcome;
}

bool evictable(const stored_version& v) { return !v.spec.pinned && !in_use(v); }

std::uint64_t free_bytes(core& c) {
  std::lock_guard guard{c.layout_mutex};
  auto capacity = capacity_of(c), taken = c.stored_bytes->load();
  return std::min(capacity > taken ? capacity - taken : 0, c.objects->probe_free().total_bytes);
}

std::uint64_t evictable_bytes(const core& c) {
  std::uint64_t sum = 0;
  for (auto& m : c.all()) {
    std::lock_guard guard{m->mutex};
    if (auto v = find_stored(*m); v && evictable(*v))
      sum += v->heap_bytes();
  }
  return sum;
}

// False when there is nothing to evict.
result<bool> evict_one(core& c) {
  std::vector<std::string> names;
  {
    std::lock_guard guard{c.models_mutex};
    auto& oldest = c.stored_models.oldest_first();
    names.assign(oldest.begin(), oldest.end());
  }
  for (auto& name : names) {
    auto m = c.find(name);
    if (!m)
      continue;
    std::lock_guard guard{m->mutex};
    auto v = find_stored(*m);
    if (!v || !evictable(*v))
      continue;
    if (auto bad = remove_owner(c, *m, *v); !bad.ok())
      return fail(std::move(bad));
    forget_stored(c, name);
    ++c.evictions;
    return true;
  }
  return false;
}

status no_room(const core& c, std::uint64_t asked, std::uint64_t free) {
  return {
    errc::no_space,
    "asked for " + std::to_string(asked) + " bytes, free are " + std::to_string(free) + " of " +
      std::to_string(capacity_of(c)) + " in the pool " + c.file.path +
      "; erase models or checkpoints, repack, or make a larger pool"};
}

} // namespace

status check_possible(core& c, std::uint64_t size_bytes) {
  if (size_bytes <= capacity_of(c))
    return {};
  return no_room(c, size_bytes, free_bytes(c));
}

// Nothing is evicted for a model that would not fit even then.
status take_room(core& c, stored_version& v, std::uint64_t body_bytes) {
  for (auto judged = false;;) {
    std::uint64_t asked = 0;
    auto outcome = try_take(c, v, body_bytes, asked);
    if (outcome.ok() || outcome.code() != errc::no_space)
      return outcome;
    if (c.options.models_full == when_full::refuse)
      return no_room(c, asked, free_bytes(c));
    if (!judged)
      if (auto free = free_bytes(c); asked > free + evictable_bytes(c))
        return no_room(c, asked, free);
    judged = true;
    auto evicted = evict_one(c);
    if (!evicted)
      return evicted.error();
    if (!*evicted)
      return no_room(c, asked, free_bytes(c));
  }
}

std::uint64_t capacity_of(const core& c) noexcept {
  auto chosen = c.options.models_capacity_bytes;
  return chosen == 0 ? c.file.size_bytes : chosen;
}

void forget_stored(core& c, const std::string& name) {
  std::lock_guard guard{c.models_mutex};
  c.stored_models.forget(name);
}

void touch_stored(core& c, const std::string& name) {
  std::lock_guard guard{c.models_mutex};
  c.stored_models.touch(name);
}

} // namespace millrace::storage::pmem
