// Removes a shard in one publish; one that is being read is only marked, and removed later. Called
// by the checkpoint store, the bucket and leases.
#include <millrace/core/kill_point.hpp>
#include <millrace/storage/pmem/care/erase.hpp>
#include <millrace/storage/pmem/catalog.hpp>
#include <millrace/storage/pmem/stored_version.hpp>

#include <algorithm>

namespace millrace::storage::pmem {

status no_such_model(const std::string& name) {
  return {errc::not_found, "there are no checkpoints of a model named {}", name};
}

status no_such_shard(const std::string& name, std::uint32_t rank) {
  return {
    errc::not_found,
    "there are no checkpoints of rank {} of model {}; the rank was never registered", rank, name};
}

std::shared_ptr<shard> find_shard(const model& m, std::uint32_t rank) {
  auto at = m.shards.find(rank);
  return at == m.shards.end() || at->second->erased ? nullptr : at->second;
}

void drop_if_empty(pool_state& state, model& m) {
  if (!m.shards.empty() || !m.versions.empty() || m.coming > 0)
    return;
  std::lock_guard guard{state.models_mutex};
  auto at = state.models.find(m.name);
  if (at == state.models.end() || at->second.get() != &m)
    return;
  m.gone = true;
  state.models.erase(at); // a thread that waits for the model's lock keeps it
}

status remove_owner(pool_state& state, model& m, slot_owner& s) {
  if (s.index == 0)
    return {}; // the leases of two slots may be dropped at once
  {
    std::lock_guard guard{state.layout_mutex};
    change removal{*state.objects};
    auto next = state.table;
    next.erase(s.key);
    auto table = write_table(state, removal, next);
    if (!table)
      return table.error();
    free_owner(removal, s);
    MILLRACE_KILL_POINT("pmem.erase.before_publish");
    if (auto bad = state.publish(removal); !bad.ok())
      return bad;
    MILLRACE_KILL_POINT("pmem.erase.after_publish");
    state.table = std::move(next);
    state.table_object = *table;
  }
  s.index = 0;
  if (s.key.kind == entry_kind::shard)
    m.shards.erase(static_cast<std::uint32_t>(s.key.number));
  else
    m.versions.erase(s.key.number);
  drop_if_empty(state, m);
  return {};
}

namespace {

status mark_erased(pool_state& state, slot_owner& s, std::uint64_t flags) {
  change mark{*state.objects};
  set_flags(state, mark, s, flags | flag_erased);
  MILLRACE_KILL_POINT("pmem.mark.before_publish");
  if (auto bad = state.publish(mark); !bad.ok())
    return bad;
  MILLRACE_KILL_POINT("pmem.mark.after_publish");
  s.erased = true;
  return {};
}

} // namespace

status erase_owner(pool_state& state, model& m, slot_owner& s, std::uint64_t flags) {
  return in_use(s) ? mark_erased(state, s, flags) : remove_owner(state, m, s);
}

namespace {

status check_detached(const model& m) {
  for (auto& [rank, s] : m.shards)
    if (s->registered)
      return {
        errc::busy, "erasing checkpoints of {}: a job is attached to rank {}; end it first", m.name,
        rank};
  return {};
}

// After the first shard no step is complete. A crash in between leaves shards, which can be erased
// again.
status erase_shards(pool_state& state, model& m) {
  auto shards = m.shards;
  for (auto& [rank, s] : shards) {
    if (s->erased)
      continue;
    if (auto bad = erase_owner(state, m, *s, flags_of(*s)); !bad.ok())
      return bad;
  }
  return {};
}

// The slots stay reserved and are empty. They are not filled again while they are being read.
status erase_step(pool_state& state, model& m, std::uint64_t step) {
  auto found = false;
  for (auto& [rank, s] : m.shards)
    for (auto number = find_version(*s, step); !s->erased && number >= 0;
         number = find_version(*s, step)) {
      found = true;
      change forget{*state.objects};
      set_state(state, forget, *s, static_cast<std::uint64_t>(number), {});
      MILLRACE_KILL_POINT("pmem.forget.before_publish");
      if (auto bad = state.publish(forget); !bad.ok())
        return bad;
      MILLRACE_KILL_POINT("pmem.forget.after_publish");
      auto& one = s->slots[number];
      one.state = slot_state::empty;
      one.sequence = 0;
      ++one.changes;
    }
  if (!found)
    return {errc::not_found, "model {} has no version of step {}", m.name, step};
  return {};
}

} // namespace

status erase_model(pool_state& state, const std::string& name, std::optional<std::uint64_t> step) {
  auto m = state.find(name);
  if (!m)
    return no_such_model(name);
  std::lock_guard guard{m->mutex};
  auto visible = std::any_of(
    m->shards.begin(), m->shards.end(), [](auto& entry) { return !entry.second->erased; });
  if (!visible)
    return no_such_model(name);
  if (auto bad = check_detached(*m); !bad.ok())
    return bad;
  return step ? erase_step(state, *m, *step) : erase_shards(state, *m);
}

status finish_erasing(pool_state& state) {
  for (auto& m : state.all()) {
    std::lock_guard guard{m->mutex};
    std::vector<std::shared_ptr<slot_owner>> left;
    for (auto& [rank, s] : m->shards)
      if (s->erased)
        left.push_back(s);
    for (auto& [number, v] : m->versions)
      if (v->erased)
        left.push_back(v);
    for (auto& s : left)
      if (auto bad = remove_owner(state, *m, *s); !bad.ok())
        return bad;
  }
  return {};
}

} // namespace millrace::storage::pmem
