// A slot is marked active before a byte of it may change, and done after all its bytes are
// persistent.
#include <millrace/core/clock.hpp>
#include <millrace/core/kill_point.hpp>
#include <millrace/storage/pmem/care/erase.hpp>
#include <millrace/storage/pmem/care/reclaim.hpp>
#include <millrace/storage/pmem/catalog.hpp>
#include <millrace/storage/pmem/saving.hpp>
#include <millrace/storage/pmem/slot_filling.hpp>
#include <millrace/storage/pmem/waiting.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <span>

namespace millrace::storage::pmem {

namespace {

// Names the ranks that have not saved a version's step yet.
std::string awaited_ranks(const model& m, const slot& one) {
  constexpr std::size_t named_max = 8;
  auto ranks = ranks_without(m, set_of(one));
  auto named = std::span{ranks}.first(std::min(ranks.size(), named_max));
  auto more = ranks.size() - named.size();
  return fmt::format(
    "waits for rank{} {}{} to save that step", ranks.size() == 1 ? "" : "s", fmt::join(named, ", "),
    more > 0 ? fmt::format(" and {} more", more) : "");
}

// Returns why each slot of a shard cannot be filled.
std::string uses_of(const model& m, const shard& s) {
  auto kept = protected_slot(s, newest_complete(m));
  std::string words;
  for (std::size_t i = 0; i < s.slots.size(); ++i) {
    auto& one = s.slots[i];
    if (!one.reserved())
      continue;
    words += fmt::format("{}{} (step {}) ", (words.empty() ? "slot " : ", slot "), i, one.step);
    words += static_cast<int>(i) == kept ? "holds the newest step"
      : !one.writer.expired()            ? "is being filled, or a lost peer may still write to it"
      : !one.readers.expired()           ? "is being read"
                                         : awaited_ranks(m, one);
  }
  return words;
}

status no_extra_room(const save_spec& what, const std::string& why) {
  return {
    errc::no_space,
    "{} bytes of the user of step {} of model {}, rank {}: {}",
    what.extra_bytes,
    what.step,
    what.model,
    what.rank,
    why};
}

// The version's run is decided when the save begins, so that it never belongs to a job that came
// later. The room for the user's bytes is there before the slot is active, so the save can end.
status mark_active(
  pool_state& state, model& m, shard& s, std::uint64_t number, const save_spec& what,
  std::uint64_t run) {
  if (what.extra_bytes > state.file.size_bytes)
    return no_extra_room(what, "the pool is smaller");
  auto& one = s.slots[number];
  auto next = one;
  std::unique_lock layout{state.layout_mutex, std::defer_lock};
  change mark{*state.objects};
  if (auto room = extra_room_of(what.extra_bytes); room > one.extra_room) {
    layout.lock();
    auto larger = enlarge_slot(state, mark, s, number, room);
    if (!larger)
      return no_extra_room(what, larger.error().detail());
    next = std::move(*larger);
  }
  set_state(
    state, mark, s, number, {slot_state::active, std::min(what.step, slot_word::payload_max)});
  MILLRACE_KILL_POINT("pmem.begin.before_publish");
  if (auto bad = state.publish(mark); !bad.ok())
    return bad;
  MILLRACE_KILL_POINT("pmem.begin.after_publish");
  next.state = slot_state::active;
  next.step = what.step;
  next.sequence = 0;
  next.run = s.run = m.run = run;
  next.saved_at_ns = 0;
  next.extra_bytes = what.extra_bytes;
  ++next.changes;
  one = std::move(next);
  return {};
}

/// A checkpoint's version that is being saved.
class saving final : public slot_filling {
public:
  saving(
    leased_slot slot, gate::ticket ticket, std::unique_ptr<extra_writer> extra,
    const save_spec& what, std::uint64_t run)
    : slot_filling(std::move(slot), std::move(ticket), std::move(extra)), rank_(what.rank),
      step_(what.step), run_(run), extra_digests_(digest_count(what.extra_bytes)) {}

  status within(const status& why) const override {
    return why.within(
      fmt::format("saving step {} of model {}, rank {}", step_, lent().of->name, rank_));
  }

  bool complete() const noexcept override { return complete_; }
  std::uint64_t run() const noexcept override { return run_; }

protected:
  status check_digests(const std::vector<std::uint64_t>& digests) const override;
  status prepare(std::vector<std::uint64_t> digests) override;
  result<std::uint64_t> finish() override;

private:
  status mark_done();

  std::uint32_t rank_;
  std::uint64_t step_, run_;
  std::uint64_t extra_digests_;
  pmem::slot version_; // as it will be
  std::atomic<bool> complete_ = false;
};

status saving::check_digests(const std::vector<std::uint64_t>& digests) const {
  auto blocks = lent().shape->digests + extra_digests_;
  if (digests.size() == blocks)
    return {};
  return {errc::invalid_argument, "{} digests for {} blocks", digests.size(), blocks};
}

// The record lies in the slot and is ignored until the slot's state names it. So it may become
// persistent together with the data.
status saving::prepare(std::vector<std::uint64_t> digests) {
  auto& state = *lent().home;
  std::lock_guard guard{lent().of->mutex};
  auto& s = *lent().which;
  version_ = s.slots[lent().number];
  version_.sequence = ++lent().of->last_sequence;
  version_.saved_at_ns = time_of_save(*lent().of, wall_clock_ns());
  auto record = store_record(state, s, lent().number, version_, digests);
  // The fence is needed since another thread may publish.
  return state.direct ? status{} : state.persist.persist(record.data(), record.size());
}

result<std::uint64_t> saving::finish() {
  auto& state = *lent().home;
  waiting_saves waiting;
  {
    std::lock_guard guard{lent().of->mutex};
    if (auto bad = mark_done(); !bad.ok())
      return fail(std::move(bad));
    auto& s = static_cast<shard&>(*lent().which);
    auto set = set_of(s.slots[lent().number]);
    complete_ = is_complete(*lent().of, set);
    waiting =
      take_waiting(*lent().of, [&](auto& other) { return complete_ || has_passed(other, s, set); });
  }
  wake(state, std::move(waiting));
  return step_;
}

// Needs the model's lock.
status saving::mark_done() {
  auto& state = *lent().home;
  auto& s = *lent().which;
  change mark{*state.objects};
  set_state(state, mark, s, lent().number, {slot_state::done, version_.sequence});
  MILLRACE_KILL_POINT("pmem.done.before_publish");
  if (auto bad = state.publish(mark); !bad.ok())
    return bad;
  MILLRACE_KILL_POINT("pmem.done.after_publish");
  auto& one = s.slots[lent().number];
  one.state = slot_state::done;
  one.sequence = version_.sequence;
  one.saved_at_ns = version_.saved_at_ns;
  return {};
}

// Keeps `freed` if the answer is `busy`, and `ticket` if it is a version.
result<std::unique_ptr<pending_version>> try_begin(
  const std::shared_ptr<pool_state>& state, const save_spec& what, std::function<void()>& freed,
  gate::ticket& ticket) {
  auto m = state->find(what.model);
  if (!m)
    return fail(no_such_model(what.model));
  leased_slot lent;
  std::unique_ptr<extra_writer> extra;
  std::uint64_t run;
  waiting_saves waiting;
  {
    std::lock_guard guard{m->mutex};
    auto s = find_shard(*m, what.rank);
    if (!s || !s->registered)
      return fail(no_such_shard(what.model, what.rank));
    s->freed = nullptr;
    run = run_to_save(*m, *s, what);
    auto number = slot_to_fill(*m, *s, what.step, run);
    if (number < 0) {
      s->freed = std::move(freed);
      return fail(
        errc::busy, "saving step {} of model {}, rank {}: no slot is free: {}", what.step,
        what.model, what.rank, uses_of(*m, *s));
    }
    auto at = static_cast<std::uint64_t>(number);
    auto begins_run = run != m->run;
    if (auto bad = mark_active(*state, *m, *s, at, what, run); !bad.ok())
      return fail(std::move(bad));
    // What others saved in the run before is not awaited any more.
    if (begins_run)
      waiting = take_all_waiting(*m);
    lent = lease_to_write(state, m, s, at);
    if (what.extra_bytes > 0)
      extra = make_extra_writer(lent, s->slots[at]);
  }
  wake(*state, std::move(waiting));
  return hand_out(
    std::make_shared<saving>(std::move(lent), std::move(ticket), std::move(extra), what, run));
}

} // namespace

// Reclaiming needs the locks of other models, so this one must not be locked.
result<std::unique_ptr<pending_version>> begin_version(
  const std::shared_ptr<pool_state>& state, const save_spec& what, std::function<void()> freed,
  gate::ticket ticket) {
  auto begun = try_begin(state, what, freed, ticket);
  auto reclaims = state->options.low_space == when_low_space::reclaim;
  if (begun || begun.error().code() != errc::no_space || !reclaims)
    return begun;
  auto gained = reclaim_space(*state, extra_room_of(what.extra_bytes));
  if (!gained)
    return fail(gained.error());
  return *gained > 0 ? try_begin(state, what, freed, ticket) : std::move(begun);
}

} // namespace millrace::storage::pmem
