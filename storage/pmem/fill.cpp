// A slot is marked active before a byte of it may change, and done after all its bytes are persistent.
#include <millrace/core/clock.hpp>
#include <millrace/core/kill_point.hpp>
#include <millrace/storage/model_check.hpp>
#include <millrace/storage/pmem/catalog.hpp>
#include <millrace/storage/pmem/erase.hpp>
#include <millrace/storage/pmem/fill.hpp>
#include <millrace/storage/pmem/lease.hpp>
#include <millrace/storage/pmem/slot_io.hpp>

#include <atomic>

namespace millrace::storage::pmem {

namespace {

// What keeps every slot of a shard from being filled.
std::string uses_of(const model& m, const shard& s) {
  auto kept = protected_slot(m, s);
  std::string words;
  for (std::size_t i = 0; i < s.slots.size(); ++i) {
    auto& one = s.slots[i];
    if (!one.reserved())
      continue;
    words += (words.empty() ? "slot " : ", slot ") + std::to_string(i) + " (step " +
      std::to_string(one.step) + ") ";
    words += static_cast<int>(i) == kept ? "holds the newest step"
      : !one.writer.expired()            ? "is being filled, or a lost peer may still write to it"
                                         : "is being read";
  }
  return words;
}

status mark_active(core& c, shard& s, std::uint64_t number, std::uint64_t step) {
  change mark{*c.objects};
  set_done(c, mark, s, number, 0);
  set_active(c, mark, s, number, step + 1);
  MILLRACE_KILL_POINT("pmem.begin.before_publish");
  if (auto bad = c.publish(mark); !bad.ok())
    return bad;
  MILLRACE_KILL_POINT("pmem.begin.after_publish");
  auto& one = s.slots[number];
  one.state = slot_state::active;
  one.step = step;
  one.sequence = 0;
  one.saved_at_ns = 0;
  ++one.changes;
  return {};
}

/// A version on its way in. The reservation and every job under way share it.
struct filling : std::enable_shared_from_this<filling> {
  leased_slot slot;
  std::unique_ptr<slot_writer> data;
  std::uint64_t step = 0;
  gate::ticket ticket;
  std::atomic<bool> publishing = false;

  status within(const status& why) const {
    return why.within(
      "saving step " + std::to_string(step) + " of model " + slot.of->name + ", rank " +
      std::to_string(slot.which->spec.rank));
  }

  void publish(std::vector<std::uint64_t> digests, completion<std::uint64_t> done);

private:
  status may_publish(const std::vector<std::uint64_t>& digests);
  status finish(const std::vector<std::uint64_t>& digests);
};

status filling::may_publish(const std::vector<std::uint64_t>& digests) {
  if (digests.size() != slot.shape->digests)
    return {
      errc::invalid_argument,
      std::to_string(digests.size()) + " digests for " + std::to_string(slot.shape->digests) +
        " blocks"};
  if (auto bad = data->may_persist(); !bad.ok())
    return bad;
  if (publishing.exchange(true))
    return {errc::invalid_argument, "published already"};
  return {};
}

void filling::publish(std::vector<std::uint64_t> digests, completion<std::uint64_t> done) {
  if (auto bad = may_publish(digests); !bad.ok())
    return done(fail(within(bad)));
  MILLRACE_KILL_POINT("pmem.persist.before");
  data->persist([self = shared_from_this(), digests = std::move(digests),
                 done = std::move(done)](status outcome) mutable {
    MILLRACE_KILL_POINT("pmem.persist.after");
    if (outcome.ok())
      outcome = self->finish(digests);
    if (!outcome.ok())
      outcome = self->within(outcome);
    auto step = self->step;
    // The slot is let go before the caller goes on: it may begin the next step at once.
    self->data.reset();
    self->slot.lease.reset();
    self->ticket.reset();
    self.reset();
    outcome.ok() ? done(step) : done(fail(std::move(outcome)));
  });
}

status filling::finish(const std::vector<std::uint64_t>& digests) {
  auto& c = *slot.home;
  std::lock_guard guard{slot.of->mutex};
  auto& s = *slot.which;
  auto version = s.slots[slot.number];
  version.sequence = slot.of->last_sequence + 1;
  version.saved_at_ns = wall_clock_ns();
  if (auto bad = write_record(c, s, slot.number, version, digests); !bad.ok())
    return bad;
  change mark{*c.objects};
  set_done(c, mark, s, slot.number, version.sequence);
  set_active(c, mark, s, slot.number, 0);
  MILLRACE_KILL_POINT("pmem.done.before_publish");
  if (auto bad = c.publish(mark); !bad.ok())
    return bad;
  MILLRACE_KILL_POINT("pmem.done.after_publish");
  version.state = slot_state::done;
  slot.of->last_sequence = version.sequence;
  s.slots[slot.number] = std::move(version);
  return {};
}

/// What the caller holds. Dropping it abandons.
class pmem_pending_version final : public pending_version {
public:
  explicit pmem_pending_version(std::shared_ptr<filling> f) : filling_(std::move(f)) {}
  ~pmem_pending_version() override {
    if (filling_->data)
      filling_->data->abandon();
  }

  std::uint32_t window_count() const noexcept override { return windows_; }
  void acquire(std::uint32_t index, completion<window> done) override {
    if (filling_->publishing)
      return done(fail(misused()));
    filling_->data->acquire(index, std::move(done));
  }
  void commit(std::uint32_t index, completion<void> done) override {
    if (filling_->publishing)
      return done(fail(misused()));
    filling_->data->commit(index, std::move(done));
  }
  void publish(std::vector<std::uint64_t> digests, completion<std::uint64_t> done) override {
    if (filling_->publishing)
      return done(fail(misused()));
    filling_->publish(std::move(digests), std::move(done));
  }
  void written_back() override {
    if (!filling_->publishing)
      filling_->data->written_back();
  }

private:
  status misused() const {
    return filling_->within({errc::invalid_argument, "published already"});
  }

  std::shared_ptr<filling> filling_;
  std::uint32_t windows_ = filling_->data->window_count();
};

} // namespace

result<std::unique_ptr<pending_version>> begin_version(
  const std::shared_ptr<core>& c, const std::string& name, std::uint32_t rank, std::uint64_t step,
  gate::ticket ticket) {
  auto m = c->find(name);
  if (!m)
    return fail(no_such_model(name));
  auto made = std::make_shared<filling>();
  {
    std::lock_guard guard{m->mutex};
    auto s = find_shard(*m, rank);
    if (!s || !s->registered)
      return fail(no_such_shard(name, rank));
    if (step == ~std::uint64_t{0})
      return fail(errc::invalid_argument, "step " + std::to_string(step) + " is too large");
    auto number = slot_to_fill(*m, *s, step);
    if (number < 0)
      return fail(
        errc::busy, "saving step " + std::to_string(step) + " of model " + name + ", rank " +
          std::to_string(rank) + ": no slot is free: " + uses_of(*m, *s));
    if (auto bad = mark_active(*c, *s, static_cast<std::uint64_t>(number), step); !bad.ok())
      return fail(std::move(bad));
    made->slot = lease_to_write(c, m, s, static_cast<std::uint64_t>(number));
  }
  made->step = step;
  made->ticket = std::move(ticket);
  made->data = make_slot_writer(made->slot);
  return std::make_unique<pmem_pending_version>(std::move(made));
}

} // namespace millrace::storage::pmem
