// Opened versions, each with a lease of its slot until its last window is dropped. Called by the
// checkpoint store and the bucket.
#include <millrace/storage/model_check.hpp>
#include <millrace/storage/pmem/care/erase.hpp>
#include <millrace/storage/pmem/extra_io.hpp>
#include <millrace/storage/pmem/opening.hpp>
#include <millrace/storage/pmem/repository_space.hpp>
#include <millrace/storage/pmem/slot_io.hpp>

#include <fmt/format.h>

#include <set>
#include <span>

namespace millrace::storage::pmem {

namespace {

class pmem_opened_version final : public opened_model {
public:
  /// `extra`: of the user's bytes, which the record then describes as its last tensor.
  pmem_opened_version(
    model_record record, const leased_slot& slot, std::optional<extra_reader> extra = {})
    : record_(std::move(record)), data_(make_slot_reader(slot)), extra_(std::move(extra)) {}

  const model_record& record() const noexcept override { return record_; }
  std::vector<std::vector<wanted>> plan(const std::vector<wanted>& ranges) const override {
    if (!extra_)
      return data_->plan(ranges);
    auto of_tensors = ranges;
    std::erase_if(of_tensors, [&](auto& range) { return is_extra(range); });
    auto windows = data_->plan(of_tensors);
    for (auto& range : ranges)
      if (is_extra(range))
        extra_->plan(range, windows);
    return windows;
  }
  std::uint64_t window_bytes() const noexcept override { return data_->window_bytes(); }
  void fetch(std::vector<wanted> ranges, memory_block staging, completion<window> done) override {
    if (extra_ && !ranges.empty() && is_extra(ranges.front()))
      return extra_->fetch(ranges.front(), std::move(staging), std::move(done));
    data_->fetch(std::move(ranges), std::move(staging), std::move(done));
  }

private:
  bool is_extra(const wanted& range) const {
    return range.tensor + 1 == record_.spec.tensors.tensors.size();
  }

  model_record record_;
  std::unique_ptr<slot_reader> data_;
  std::optional<extra_reader> extra_;
};

std::string listed(const std::vector<std::uint64_t>& steps) {
  constexpr std::size_t named_max = 16;
  if (steps.empty())
    return "none";
  auto first = steps.size() > named_max ? steps.size() - named_max : 0;
  return fmt::format("{}", fmt::join(std::span{steps}.subspan(first), ", "));
}

status no_such_step(const model& m, const shard& s, std::optional<std::uint64_t> step) {
  std::set<std::uint64_t> own;
  for (auto& one : s.slots)
    if (one.done())
      own.insert(one.step);
  auto what = fmt::format("model {}, rank {} of {}: ", m.name, s.spec.rank, m.world_size);
  what += step ? fmt::format("no version of step {}", *step) : std::string{"no step is complete"};
  return {
    errc::not_found, "{}; steps of this shard: {}; complete: {}", what,
    listed({own.begin(), own.end()}), listed(complete_steps(m))};
}

// `digests`: of the tensors, then of the user's bytes.
model_record record_of(
  const shard& s, const slot& one, version_part part, std::vector<std::uint64_t> digests) {
  auto extra_begins = digests.begin() + static_cast<std::ptrdiff_t>(s.shape->digests);
  if (part == version_part::tensors)
    digests.erase(extra_begins, digests.end());
  else if (part == version_part::extra)
    digests.erase(digests.begin(), extra_begins);
  model_record record;
  record.spec.name = s.spec.model;
  if (part != version_part::extra)
    record.spec.tensors = s.spec.tensors;
  if (part != version_part::tensors && one.extra_bytes > 0)
    record.spec.tensors.tensors.push_back(extra_tensor(one.extra_bytes));
  record.spec.metadata = s.spec.metadata;
  record.version = one.step;
  record.stored_at_ns = one.saved_at_ns;
  record.digests = std::move(digests);
  record.extra_bytes = one.extra_bytes;
  return record;
}

// Finds the slot; negative for none. A step that is not complete is found only by its number.
int find_version(const model& m, const shard& s, const version_choice& which) {
  if (which.saved_at_ns != 0)
    return find_version_saved_at(s, which.saved_at_ns);
  if (auto set = newest_complete(m, which.step))
    return find_version(s, *set);
  return which.step ? find_version(s, *which.step) : -1;
}

} // namespace

result<std::shared_ptr<opened_model>> open_version(
  const std::shared_ptr<pool_state>& state, const std::string& name, std::uint32_t rank,
  const version_choice& which) {
  auto m = state->find(name);
  if (!m)
    return fail(no_such_model(name));
  model_record record;
  leased_slot slot;
  std::optional<extra_reader> extra;
  {
    std::lock_guard guard{m->mutex};
    auto s = find_shard(*m, rank);
    if (!s)
      return fail(no_such_shard(name, rank));
    auto number = find_version(*m, *s, which);
    if (number < 0)
      return fail(no_such_step(*m, *s, which.step));
    auto at = static_cast<std::uint64_t>(number);
    auto digests = read_digests(state->objects->base(), *s, at);
    if (!digests)
      return fail(
        digests.error().within(fmt::format("model {}, rank {}, slot {}", name, rank, at)));
    auto& one = s->slots[at];
    record = record_of(*s, one, which.part, std::move(*digests));
    slot = lease_to_read(state, m, s, at);
    if (which.part != version_part::tensors && one.extra_bytes > 0)
      extra.emplace(slot, one);
  }
  return std::make_shared<pmem_opened_version>(std::move(record), slot, std::move(extra));
}

result<std::shared_ptr<opened_model>> open_stored(
  const std::shared_ptr<pool_state>& state, const std::string& name, std::uint64_t version) {
  auto m = state->find(name);
  if (!m)
    return fail(storage::no_such_model(name, version, 0));
  model_record record;
  leased_slot slot;
  {
    std::lock_guard guard{m->mutex};
    auto v = find_stored(*m);
    if (!v || (version != 0 && version != v->number()))
      return fail(storage::no_such_model(name, version, v ? v->number() : 0));
    auto digests = read_digests(state->objects->base(), *v, 0);
    if (!digests)
      return fail(digests.error().within(describe(v->key)));
    record = {v->spec, v->number(), v->stored_at_ns(), std::move(*digests), 0};
    slot = lease_to_read(state, m, v, 0);
    touch_stored(*state, *v);
  }
  return std::make_shared<pmem_opened_version>(std::move(record), slot);
}

} // namespace millrace::storage::pmem
