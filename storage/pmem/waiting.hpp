// Saves that wait for a slot of their shard, and who tells them to ask again. Used by saving,
// registration and leases.
#pragma once

#include <millrace/storage/pmem/pool_state.hpp>

#include <functional>
#include <utility>
#include <vector>

namespace millrace::storage::pmem {

/// The callbacks `freed` of saves that wait, see `checkpoint_store::begin`.
using waiting_saves = std::vector<std::function<void()>>;

/// Takes the callbacks of the shards for which `holds`. Needs the model's lock.
template <class Condition>
waiting_saves take_waiting(const model& m, Condition holds) {
  waiting_saves taken;
  for (auto& [rank, s] : m.shards)
    if (s->freed && holds(*s))
      taken.push_back(std::exchange(s->freed, nullptr));
  return taken;
}

inline waiting_saves take_all_waiting(const model& m) {
  return take_waiting(m, [](auto&) { return true; });
}

/// Runs the callbacks on a thread of the pool, since the caller may hold locks of its own; not the
/// model's.
inline void wake(pool_state& state, waiting_saves waiting) {
  if (!waiting.empty())
    state.pool.post([waiting = std::move(waiting)](const status&) {
      for (auto& freed : waiting)
        freed();
    });
}

} // namespace millrace::storage::pmem
