// A slot is marked active before a byte of it may change, and done after all its bytes are
// persistent.
#include <millrace/core/clock.hpp>
#include <millrace/core/kill_point.hpp>
#include <millrace/storage/pmem/care/erase.hpp>
#include <millrace/storage/pmem/catalog.hpp>
#include <millrace/storage/pmem/saving.hpp>
#include <millrace/storage/pmem/slot_filling.hpp>

#include <algorithm>
#include <atomic>

namespace millrace::storage::pmem {

namespace {

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
                                         : "is being read";
  }
  return words;
}

// The version's run is decided when the save begins, so that it never belongs to a job that came
// later.
status mark_active(
  pool_state& state, model& m, shard& s, std::uint64_t number, const save_spec& what) {
  auto run = run_to_save(m, s, what);
  change mark{*state.objects};
  set_state(
    state, mark, s, number, {slot_state::active, std::min(what.step, slot_word::payload_max)});
  MILLRACE_KILL_POINT("pmem.begin.before_publish");
  if (auto bad = state.publish(mark); !bad.ok())
    return bad;
  MILLRACE_KILL_POINT("pmem.begin.after_publish");
  auto& one = s.slots[number];
  one.state = slot_state::active;
  one.step = what.step;
  one.sequence = 0;
  one.run = s.run = m.run = run;
  one.saved_at_ns = 0;
  ++one.changes;
  return {};
}

/// A checkpoint's version that is being saved.
class saving final : public slot_filling {
public:
  saving(leased_slot slot, gate::ticket ticket, std::uint32_t rank, std::uint64_t step)
    : slot_filling(std::move(slot), std::move(ticket)), rank_(rank), step_(step) {}

  status within(const status& why) const override {
    return why.within(
      fmt::format("saving step {} of model {}, rank {}", step_, lent().of->name, rank_));
  }

  bool complete() const noexcept override { return complete_; }

protected:
  status check_digests(const std::vector<std::uint64_t>& digests) const override;
  status prepare(std::vector<std::uint64_t> digests) override;
  result<std::uint64_t> finish() override;

private:
  std::uint32_t rank_;
  std::uint64_t step_;
  pmem::slot version_; // as it will be
  std::atomic<bool> complete_ = false;
};

status saving::check_digests(const std::vector<std::uint64_t>& digests) const {
  if (digests.size() == lent().shape->digests)
    return {};
  return {
    errc::invalid_argument, "{} digests for {} blocks", digests.size(), lent().shape->digests};
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
  std::lock_guard guard{lent().of->mutex};
  auto& s = *lent().which;
  change mark{*state.objects};
  set_state(state, mark, s, lent().number, {slot_state::done, version_.sequence});
  MILLRACE_KILL_POINT("pmem.done.before_publish");
  if (auto bad = state.publish(mark); !bad.ok())
    return fail(std::move(bad));
  MILLRACE_KILL_POINT("pmem.done.after_publish");
  auto& one = s.slots[lent().number];
  one.state = slot_state::done;
  one.sequence = version_.sequence;
  one.saved_at_ns = version_.saved_at_ns;
  complete_ = is_complete(*lent().of, {step_, one.run});
  return step_;
}

} // namespace

result<std::unique_ptr<pending_version>> begin_version(
  const std::shared_ptr<pool_state>& state, const save_spec& what, std::function<void()> freed,
  gate::ticket ticket) {
  auto m = state->find(what.model);
  if (!m)
    return fail(no_such_model(what.model));
  leased_slot lent;
  {
    std::lock_guard guard{m->mutex};
    auto s = find_shard(*m, what.rank);
    if (!s || !s->registered)
      return fail(no_such_shard(what.model, what.rank));
    s->freed = nullptr;
    auto number = slot_to_fill(*m, *s, what.step);
    if (number < 0) {
      s->freed = std::move(freed);
      return fail(
        errc::busy, "saving step {} of model {}, rank {}: no slot is free: {}", what.step,
        what.model, what.rank, uses_of(*m, *s));
    }
    if (auto bad = mark_active(*state, *m, *s, static_cast<std::uint64_t>(number), what); !bad.ok())
      return fail(std::move(bad));
    lent = lease_to_write(state, m, s, static_cast<std::uint64_t>(number));
  }
  return hand_out(
    std::make_shared<saving>(std::move(lent), std::move(ticket), what.rank, what.step));
}

} // namespace millrace::storage::pmem
