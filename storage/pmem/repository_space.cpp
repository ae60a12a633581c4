// Reserves all objects of a version before its bytes arrive, so that it can be finished in a full
// pool. Called by storing.
#include <millrace/core/kill_point.hpp>
#include <millrace/storage/bucket.hpp>
#include <millrace/storage/pmem/care/erase.hpp>
#include <millrace/storage/pmem/catalog.hpp>
#include <millrace/storage/pmem/repository_space.hpp>

#include <algorithm>

namespace millrace::storage::pmem {

namespace {

// Needs `layout_mutex`. With places of any kind, the capacity does not count either.
status reserve_objects(
  pool_state& state, stored_version& v, std::uint64_t body_bytes, heap::places where) {
  auto& into = v.reserved.emplace(*state.objects, where);
  auto made = reserve_slot(state, into, v, 0);
  if (!made)
    return made.error();
  v.slots[0] = std::move(*made);
  state.persist.fence(); // another thread may publish
  auto index = into.reserve(sizeof(index_header) + body_bytes, object_type::stored_index);
  if (!index)
    return index.error();
  v.index = *index;
  v.index_bytes = into.reserved_bytes();
  auto used = state.stored->used_bytes() + v.heap_bytes();
  if (used > capacity_of(state) && where == heap::places::usual)
    return {errc::no_space, "the repository is full"};
  return {};
}

bool is_always_taken(const pool_state& state, const model_spec& spec) {
  return storage::is_always_taken(spec, [&] { return state.find(spec.name) != nullptr; });
}

status try_take(
  pool_state& state, stored_version& v, std::uint64_t body_bytes, std::uint64_t& asked) {
  std::lock_guard guard{state.layout_mutex};
  auto outcome = reserve_objects(state, v, body_bytes, heap::places::usual);
  if (outcome.code() == errc::no_space && is_always_taken(state, v.spec))
    outcome = reserve_objects(state, v, body_bytes, heap::places::any);
  MILLRACE_KILL_POINT("pmem.store.reserved");
  if (outcome.ok()) {
    v.taken = {state.stored, v.heap_bytes()};
    return outcome;
  }
  asked = std::max(v.shape->packed.stream_bytes + body_bytes, v.heap_bytes());
  v.reserved.reset();
  v.slots[0] = {};
  v.index = v.index_bytes = 0;
  return outcome;
}

bool evictable(const stored_version& v) { return !v.spec.pinned && !in_use(v); }

std::uint64_t free_bytes(pool_state& state) {
  std::lock_guard guard{state.layout_mutex};
  auto capacity = capacity_of(state), taken = state.stored->used_bytes();
  return std::min(capacity > taken ? capacity - taken : 0, state.objects->probe_free().total_bytes);
}

// Returns the sum over the models that could be evicted.
template <class Bytes>
std::uint64_t evictable_bytes(const pool_state& state, Bytes bytes_of) {
  std::uint64_t sum = 0;
  for (auto& m : state.all()) {
    std::lock_guard guard{m->mutex};
    if (auto v = find_stored(*m); v && evictable(*v))
      sum += bytes_of(*v);
  }
  return sum;
}

std::uint64_t evictable_descriptions(const pool_state& state) {
  return evictable_bytes(state, [&](auto& v) {
    return v.described.size_bytes() + state.layers->unshared_bytes(v.layers.ids());
  });
}

// Returns false when no model can be evicted.
result<bool> evict_one(pool_state& state) {
  std::vector<std::string> names;
  {
    std::lock_guard guard{state.models_mutex};
    auto& oldest = state.stored_models.oldest_first();
    names.assign(oldest.begin(), oldest.end());
  }
  for (auto& name : names) {
    auto m = state.find(name);
    if (!m)
      continue;
    std::lock_guard guard{m->mutex};
    auto v = find_stored(*m);
    if (!v || !evictable(*v))
      continue;
    if (auto bad = remove_owner(state, *m, *v); !bad.ok())
      return fail(std::move(bad));
    forget_stored(state, name);
    ++state.evictions;
    return true;
  }
  return false;
}

status no_room(const pool_state& state, std::uint64_t asked, std::uint64_t free) {
  return {
    errc::no_space,
    "asked for {} bytes, free are {} of {} in the pool {}; erase models or checkpoints, repack, or "
    "make a larger pool",
    asked,
    free,
    capacity_of(state),
    state.file.path};
}

// Repeats `take` after evicting a model, where configured. No model is evicted for one that would
// not fit into the empty repository.
template <class Take, class CouldFit>
status take_evicting(pool_state& state, Take take, CouldFit could_fit) {
  for (auto judged = false;; judged = true) {
    status outcome = take();
    if (
      outcome.code() != errc::no_space || state.options.models_full == when_full::refuse ||
      (!judged && !could_fit()))
      return outcome;
    auto evicted = evict_one(state);
    if (!evicted)
      return evicted.error();
    if (!*evicted)
      return outcome;
  }
}

} // namespace

status check_possible(pool_state& state, std::uint64_t size_bytes) {
  if (size_bytes <= capacity_of(state))
    return {};
  return no_room(state, size_bytes, free_bytes(state));
}

status take_descriptions(
  pool_state& state, stored_version& v, const checked_spec& checked,
  const std::vector<described_layer>& layers) {
  auto size = described_bytes(checked, *v.shape);
  auto take = [&]() -> status {
    auto named = state.layers->retain(checked.layers, layers);
    if (!named)
      return named.error();
    auto described = account_lease::take(state.descriptions, size, is_always_taken(state, v.spec));
    if (!described)
      return described.error();
    v.layers = std::move(*named);
    v.described = std::move(*described);
    return {};
  };
  return take_evicting(state, take, [&] {
    return size + state.layers->new_bytes(checked.layers, layers) <=
      state.descriptions->free_bytes() + evictable_descriptions(state);
  });
}

result<std::shared_ptr<const account_lease>> take_descriptions(
  pool_state& state, const shard_spec& spec, const shard_shape& shape) {
  auto size = described_bytes(spec, shape);
  account_lease taken;
  auto take = [&]() -> status {
    auto described = account_lease::take(state.descriptions, size, false);
    if (!described)
      return described.error();
    taken = std::move(*described);
    return {};
  };
  auto outcome = take_evicting(state, take, [&] {
    return size <= state.descriptions->free_bytes() + evictable_descriptions(state);
  });
  if (!outcome.ok())
    return fail(std::move(outcome));
  return std::make_shared<const account_lease>(std::move(taken));
}

status take_space(pool_state& state, stored_version& v, std::uint64_t body_bytes) {
  std::uint64_t asked = 0, free = 0;
  auto take = [&] {
    auto outcome = try_take(state, v, body_bytes, asked);
    if (outcome.code() != errc::no_space)
      return outcome;
    free = free_bytes(state);
    return no_room(state, asked, free);
  };
  return take_evicting(state, take, [&] {
    return asked <= free + evictable_bytes(state, [](auto& other) { return other.heap_bytes(); });
  });
}

std::uint64_t capacity_of(const pool_state& state) noexcept {
  auto chosen = state.options.models_capacity_bytes;
  return chosen == 0 ? state.file.size_bytes : chosen;
}

void forget_stored(pool_state& state, const std::string& name) {
  std::lock_guard guard{state.models_mutex};
  state.stored_models.forget(name);
}

void touch_stored(pool_state& state, const stored_version& v) {
  std::lock_guard guard{state.models_mutex};
  state.stored_models.put(v.spec.name, v.spec.erased);
}

} // namespace millrace::storage::pmem
