// Makes a shard's index and all its slots in one publish, or resumes a shard that exists. Called by
// the checkpoint store.
#include <millrace/core/kill_point.hpp>
#include <millrace/core/log.hpp>
#include <millrace/storage/pmem/care/erase.hpp>
#include <millrace/storage/pmem/care/reclaim.hpp>
#include <millrace/storage/pmem/catalog.hpp>
#include <millrace/storage/pmem/enroll.hpp>
#include <millrace/storage/pmem/repository_space.hpp>
#include <millrace/storage/pmem/waiting.hpp>

#include <algorithm>

namespace millrace::storage::pmem {

namespace {

constexpr int attempts_max = 100'000;

status refused(const shard_spec& spec, errc code, const std::string& what) {
  return {code, "registering rank {} of model {}: {}", spec.rank, spec.model, what};
}

status check_known(const model& m, const shard_spec& spec) {
  if (!m.shards.empty() && m.world_size != spec.world_size)
    return refused(
      spec, errc::invalid_argument,
      fmt::format(
        "its checkpoints have a world size of {}, this job has {}; use another name, or erase them",
        m.world_size, spec.world_size));
  auto at = m.shards.find(spec.rank);
  if (at == m.shards.end())
    return {};
  auto& known = *at->second;
  if (known.erased)
    return refused(spec, errc::busy, "its erased versions are still being read; try again later");
  if (known.registered)
    return refused(spec, errc::busy, "another job is attached to it; end that job first");
  auto difference = first_difference(known.spec.tensors, spec.tensors);
  if (!difference.empty())
    return refused(
      spec, errc::invalid_argument,
      fmt::format("another layout is there: {}; erase it, or take another name", difference));
  // What was saved lies at the places of its registration.
  if (!known.spec.places.empty() && !spec.places.empty() && known.spec.places != spec.places)
    return refused(
      spec, errc::invalid_argument,
      "its tensors are stored with other global shapes or offsets; erase it, or take another name");
  return {};
}

// Slots beyond `keep` that may be freed: empty ones first, then those saved longest ago.
std::vector<std::uint64_t> beyond_keep(const model& m, const shard& s, std::uint32_t keep) {
  std::vector<std::uint64_t> candidates;
  auto kept = protected_slot(s, newest_complete(m));
  for (std::size_t i = 0; i < s.slots.size(); ++i) {
    auto& one = s.slots[i];
    auto stays = one.in_use() || static_cast<int>(i) == kept || is_awaited(m, one, s.run);
    if (one.reserved() && !stays)
      candidates.push_back(i);
  }
  auto key = [&](std::uint64_t i) { return s.slots[i].done() ? s.slots[i].sequence : 0; };
  std::stable_sort(
    candidates.begin(), candidates.end(), [&](auto a, auto b) { return key(a) < key(b); });
  auto there = s.reserved_slots();
  auto surplus = there > keep ? there - keep : 0;
  candidates.resize(std::min<std::size_t>(surplus, candidates.size()));
  return candidates;
}

status fill_up(pool_state& state, change& into, shard& next) {
  for (std::size_t i = 0; i < keep_max && next.reserved_slots() < next.spec.keep; ++i) {
    auto& one = next.slots[i];
    if (one.reserved())
      continue;
    auto made = reserve_slot(state, into, next, i);
    if (!made)
      return made.error();
    made->changes = one.changes + 1;
    one = std::move(*made);
  }
  return {};
}

// Writes the index of `next` and the table that names it, and frees the old index. All or nothing.
status publish_shard(pool_state& state, change& into, shard& next) {
  auto index = write_index(state, into, next);
  if (!index)
    return index.error();
  auto entries = state.table;
  entries[next.key] = *index;
  auto table = write_table(state, into, entries);
  if (!table)
    return table.error();
  if (next.index != 0)
    into.free(next.index);
  MILLRACE_KILL_POINT("pmem.enroll.before_publish");
  if (auto bad = state.publish(into); !bad.ok())
    return bad;
  MILLRACE_KILL_POINT("pmem.enroll.after_publish");
  next.index = *index;
  state.table = std::move(entries);
  state.table_object = *table;
  return {};
}

status no_room(pool_state& state, const shard_spec& spec) {
  std::lock_guard guard{state.layout_mutex};
  auto free = state.objects->probe_free();
  return refused(
    spec, errc::no_space,
    fmt::format(
      "{} slots take {} bytes, free are {} in the pool {}; erase checkpoints, repack, or make a "
      "larger pool",
      spec.keep, size_bytes(spec.tensors) * spec.keep, free.total_bytes, state.file.path));
}

// Refuses a shard that is too large for the pool before anything is allocated or reclaimed for it.
bool is_possible(const pool_state& state, const shard_spec& spec) {
  return size_bytes(spec.tensors) <= state.file.size_bytes / spec.keep;
}

status settle(pool_state& state, const model& m, shard& next) {
  std::lock_guard guard{state.layout_mutex};
  change into{*state.objects};
  for (auto number : beyond_keep(m, next, next.spec.keep)) {
    auto& one = next.slots[number];
    free_slot(into, one);
    auto changes = one.changes + 1;
    one = {};
    one.changes = changes;
  }
  auto outcome = fill_up(state, into, next);
  MILLRACE_KILL_POINT("pmem.enroll.reserved");
  return outcome.ok() ? publish_shard(state, into, next) : outcome;
}

// What a new shard takes in memory. Empty: the shard exists.
struct described_shard {
  std::shared_ptr<const shard_shape> shape;
  std::shared_ptr<const account_lease> taken;
};

// Evicting models for it needs their locks, so the shard's model must not be locked.
result<described_shard> describe_new(pool_state& state, const shard_spec& spec) {
  if (auto m = state.find(spec.model)) {
    std::lock_guard guard{m->mutex};
    if (find_shard(*m, spec.rank))
      return described_shard{};
  }
  auto shape =
    std::make_shared<const shard_shape>(shape_of(spec.tensors, state.options.window_bytes));
  auto taken = take_descriptions(state, spec, *shape);
  if (!taken)
    return fail(refused(spec, taken.error().code(), taken.error().detail()));
  return described_shard{std::move(shape), std::move(*taken)};
}

status make_shard(
  pool_state& state, model& m, shard_spec spec, std::uint64_t run, described_shard described) {
  auto made = std::make_shared<shard>();
  made->key = {entry_kind::shard, spec.model, spec.rank};
  made->id = random_id();
  made->window_bytes = state.options.window_bytes;
  made->shape = std::move(described.shape);
  made->described = std::move(described.taken);
  made->spec = std::move(spec);
  made->run = run;
  made->registered = true;
  if (auto bad = settle(state, m, *made); !bad.ok())
    return bad;
  m.world_size = made->spec.world_size;
  m.shards.emplace(made->spec.rank, std::move(made));
  return {};
}

status resume_shard(pool_state& state, model& m, shard& known, shard_spec spec, std::uint64_t run) {
  auto next = known;
  // Registrations by older builds, and by those who know nothing of places, keep them.
  if (spec.places.empty())
    spec.places = known.spec.places;
  auto same = known.spec == spec && known.run == run && !known.finished &&
    known.reserved_slots() == spec.keep;
  next.spec = std::move(spec);
  if (next.spec.keep != known.spec.keep || next.spec.places != known.spec.places)
    next.described =
      std::make_shared<account_lease>(state.descriptions, described_bytes(next.spec, *next.shape));
  next.run = run;
  next.finished = false;
  next.registered = true;
  if (!same)
    if (auto bad = settle(state, m, next); !bad.ok())
      return bad;
  known = std::move(next);
  return {};
}

// The bytes of the slots that the shard still lacks.
std::uint64_t missing_bytes(const model& m, const shard_spec& spec) {
  auto known = find_shard(m, spec.rank);
  auto there = known ? std::min(known->reserved_slots(), spec.keep) : 0;
  return size_bytes(spec.tensors) * (spec.keep - there);
}

// The last reader of an erased shard may have ended before a thread of the pool has freed it.
status remove_unread(pool_state& state, model& m, std::uint32_t rank) {
  auto at = m.shards.find(rank);
  if (at == m.shards.end() || !at->second->erased || in_use(*at->second))
    return {};
  auto unread = at->second;
  return remove_owner(state, m, *unread);
}

result<enrolled_shard> try_enroll(
  pool_state& state, model& m, const shard_spec& spec, const described_shard& described) {
  if (auto bad = check_known(m, spec); !bad.ok())
    return fail(std::move(bad));
  auto known = find_shard(m, spec.rank);
  auto run = run_to_join(m, spec);
  auto outcome =
    known ? resume_shard(state, m, *known, spec, run) : make_shard(state, m, spec, run, described);
  if (!outcome.ok()) {
    drop_if_empty(state, m);
    return fail(std::move(outcome));
  }
  m.run = run;
  for (auto& one : find_shard(m, spec.rank)->slots)
    state.make_ready(one.extents);
  return enrolled_shard{summarize(m), known != nullptr, run};
}

} // namespace

result<enrolled_shard> enroll_shard(pool_state& state, shard_spec spec) {
  if (auto bad = validate(spec); !bad.ok())
    return fail(std::move(bad));
  if (!is_possible(state, spec))
    return fail(no_room(state, spec));
  auto reclaims = state.options.low_space == when_low_space::reclaim;
  for (auto attempt = 0; attempt < attempts_max; ++attempt) {
    std::uint64_t missing = 0;
    waiting_saves waiting;
    result<enrolled_shard> outcome;
    auto described = describe_new(state, spec);
    if (!described)
      return fail(described.error());
    {
      auto m = state.find_or_make(spec.model);
      std::lock_guard guard{m->mutex};
      if (m->gone)
        continue;
      if (auto bad = remove_unread(state, *m, spec.rank); !bad.ok())
        return fail(std::move(bad));
      if (m->gone || (!described->taken && !find_shard(*m, spec.rank)))
        continue;
      missing = missing_bytes(*m, spec);
      auto run = m->run;
      outcome = try_enroll(state, *m, spec, *described);
      // What was saved in the run before is not awaited any more.
      if (m->run != run)
        waiting = take_all_waiting(*m);
    }
    wake(state, std::move(waiting));
    if (outcome || outcome.error().code() != errc::no_space)
      return outcome;
    if (!reclaims)
      return fail(no_room(state, spec));
    auto freed = reclaim_space(state, missing);
    if (!freed)
      return fail(freed.error());
    reclaims = *freed > 0; // tries once more, since other calls may have freed space
  }
  return fail(refused(spec, errc::busy, "its model is being erased and made again; try again"));
}

std::shared_ptr<shard> leave_shard(
  pool_state& state, const std::string& name, std::uint32_t rank, bool finished) {
  auto m = state.find(name);
  if (!m)
    return nullptr;
  std::lock_guard guard{m->mutex};
  auto s = find_shard(*m, rank);
  if (!s || !s->registered)
    return nullptr;
  s->registered = false;
  s->freed = nullptr;
  s->finished = finished;
  return finished ? s : nullptr;
}

void mark_finished(pool_state& state, const std::string& name, const std::shared_ptr<shard>& s) {
  auto m = state.find(name);
  if (!m)
    return;
  std::lock_guard guard{m->mutex};
  if (find_shard(*m, s->spec.rank) != s || !s->finished)
    return; // erased, or taken up again
  change mark{*state.objects};
  set_flags(state, mark, *s, flag_finished);
  if (auto bad = state.publish(mark); !bad.ok()) {
    log().warn(
      "a finished job could not be marked as finished model={} rank={}: {}", name, s->spec.rank,
      bad.to_string());
    s->finished = false;
    return;
  }
  MILLRACE_KILL_POINT("pmem.leave.after_publish");
}

} // namespace millrace::storage::pmem
