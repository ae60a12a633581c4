// The rules: which step is complete, which slot is filled next. Called by saving, opening, erasing
// and care.
#include <millrace/core/digest.hpp>
#include <millrace/core/planted_defect.hpp>
#include <millrace/storage/pmem/stored_version.hpp>

#include <algorithm>

namespace millrace::storage::pmem {

shard_shape shape_of(const layout& tensors, std::uint64_t window_bytes) {
  shard_shape shape;
  shape.tensor_bytes.reserve(tensors.tensors.size());
  for (auto& tensor : tensors.tensors) {
    shape.tensor_bytes.push_back(*size_bytes(tensor));
    shape.size_bytes += shape.tensor_bytes.back();
    shape.digests += digest_count(shape.tensor_bytes.back());
  }
  shape.packed = io::pack_contiguous(shape.tensor_bytes, window_bytes);
  return shape;
}

std::uint64_t extra_at(const slot& one, const shard_shape& shape) noexcept {
  auto digests = shape.digests + digest_count(one.extra_bytes);
  auto after = one.record_at + sizeof(version_header) + digests * sizeof(std::uint64_t);
  return (after + extra_alignment - 1) / extra_alignment * extra_alignment;
}

std::shared_ptr<stored_version> find_stored(const model& m) {
  for (auto& [number, v] : m.versions)
    if (!v->erased)
      return v;
  return nullptr;
}

namespace {

constexpr auto table_window_bytes = sizeof(io::packed_window) + sizeof(io::placed_piece);

} // namespace

std::uint64_t described_bytes(const shard_spec& spec, const shard_shape& shape) noexcept {
  auto texts = table_entry_bytes + 4 * spec.model.size() + storage::described_bytes(spec.tensors) +
    storage::described_bytes(spec.axes) + storage::described_bytes(spec.metadata) +
    storage::described_bytes(spec.places);
  // The registration has a copy. In each slot a window may be an extent of its own.
  return 2 * texts +
    (table_window_bytes + spec.keep * sizeof(data_extent)) * shape.packed.windows.size();
}

std::uint64_t described_bytes(const checked_spec& checked, const shard_shape& shape) noexcept {
  return checked.metadata_bytes - checked.digests_bytes +
    table_window_bytes * shape.packed.windows.size();
}

model_summary summarize(const stored_version& v) {
  return {v.spec.name,      v.number(),    v.size_bytes, v.spec.tensors.tensors.size(),
          v.stored_at_ns(), v.spec.pinned, v.spec.group, v.spec.view,
          v.spec.erased};
}

std::uint32_t slot_owner::reserved_slots() const noexcept {
  return static_cast<std::uint32_t>(
    std::count_if(slots.begin(), slots.end(), [](const slot& s) { return s.reserved(); }));
}

std::uint64_t time_of_save(model& m, std::uint64_t now_ns) noexcept {
  return m.last_saved_at_ns = std::max(m.last_saved_at_ns + 1, now_ns);
}

namespace {

// The number of shards with a done version of a set, and its largest sequence number.
struct set_count {
  std::uint32_t shards = 0;
  std::uint64_t sequence = 0;
};

void count_versions(const shard& s, std::map<version_set, set_count>& sets) {
  std::map<version_set, std::uint64_t> own;
  for (auto& one : s.slots)
    if (one.done()) {
      auto& sequence = own[set_of(one)];
      sequence = std::max(sequence, one.sequence);
    }
  for (auto& [set, sequence] : own) {
    auto& count = sets[set];
    ++count.shards;
    count.sequence = std::max(count.sequence, sequence);
  }
}

// Empty while shards of the world are missing, since no set is complete then.
std::map<version_set, set_count> complete_sets(const model& m) {
  std::map<version_set, set_count> sets;
  if (m.shards.size() < m.world_size)
    return sets;
  for (auto& [rank, s] : m.shards)
    if (!s->erased)
      count_versions(*s, sets);
  std::erase_if(sets, [&](auto& entry) { return entry.second.shards != m.world_size; });
  return sets;
}

template <class Condition>
int newest_slot(const shard& s, Condition holds) noexcept {
  int found = -1;
  for (std::size_t i = 0; i < s.slots.size(); ++i) {
    auto& one = s.slots[i];
    if (one.done() && holds(one) && (found < 0 || one.sequence > s.slots[found].sequence))
      found = static_cast<int>(i);
  }
  return found;
}

} // namespace

std::uint64_t run_to_join(const model& m, const shard_spec& spec) {
  auto at = m.shards.find(spec.rank);
  if (at != m.shards.end()) {
    auto& known = *at->second;
    if (spec.life != 0 && known.spec.life == spec.life)
      return m.run; // the same job goes on
    if (known.run == m.run)
      return m.run + 1; // another job
  }
  // The rank is late, or it is the first one of a new job. It is the first one if other ranks have
  // left the run without ending in order.
  auto others_missed = std::ranges::any_of(m.shards, [&](auto& entry) {
    auto& other = *entry.second;
    auto gone = other.run == m.run && !other.registered && !other.finished;
    return gone && (spec.life == 0 || other.spec.life != spec.life);
  });
  return others_missed ? m.run + 1 : m.run;
}

std::uint64_t run_to_save(const model& m, const shard& s, const save_spec& what) noexcept {
  auto newest = newest_slot(s, [&](const slot& one) { return one.run == m.run; });
  auto again =
    (newest >= 0 && s.slots[newest].step >= what.step) || (what.went_back && s.run == m.run);
  // A request that is wrong must not use up the numbers.
  constexpr std::uint64_t ahead_max = std::uint64_t{1} << 32;
  return std::max(again ? m.run + 1 : m.run, std::min(what.run_min, m.run + ahead_max));
}

bool is_complete(const model& m, const version_set& set) {
  return m.shards.size() == m.world_size && std::ranges::all_of(m.shards, [&](auto& entry) {
           return !entry.second->erased && find_version(*entry.second, set) >= 0;
         });
}

std::vector<std::uint64_t> complete_steps(const model& m) {
  std::vector<std::uint64_t> complete;
  for (auto& [set, count] : complete_sets(m))
    if (complete.empty() || complete.back() != set.step)
      complete.push_back(set.step);
  return complete;
}

std::optional<version_set> newest_complete(const model& m, std::optional<std::uint64_t> step) {
  std::optional<version_set> newest;
  std::uint64_t sequence = 0;
  for (auto& [set, count] : complete_sets(m))
    if ((!step || set.step == *step) && count.sequence >= sequence)
      newest = set, sequence = count.sequence;
  return newest;
}

int find_version(const shard& s, std::uint64_t step) noexcept {
  return newest_slot(s, [=](const slot& one) { return one.step == step; });
}

int find_version(const shard& s, const version_set& set) noexcept {
  return newest_slot(s, [&](const slot& one) { return set_of(one) == set; });
}

int find_version_saved_at(const shard& s, std::uint64_t saved_at_ns) noexcept {
  return newest_slot(s, [=](const slot& one) { return one.saved_at_ns == saved_at_ns; });
}

int protected_slot(const shard& s, const std::optional<version_set>& newest) noexcept {
  return newest ? find_version(s, *newest) : newest_slot(s, [](auto&) { return true; });
}

namespace {

// Whether a shard without a done version of a set may still save one while the model is in `run`:
// it is saving it, or it has not come that far. Within a run the steps of a rank ascend.
bool may_still_save(const shard& s, const version_set& set, std::uint64_t run) noexcept {
  auto saving = [&](const slot& one) {
    return one.state == slot_state::active && !one.writer.expired() && set_of(one) == set;
  };
  if (std::ranges::any_of(s.slots, saving))
    return true;
  auto newest = newest_slot(s, [&](const slot& one) { return one.run == set.run; });
  return set.run == run && (newest < 0 || s.slots[newest].step < set.step);
}

} // namespace

bool is_awaited(const model& m, const slot& one, std::uint64_t run) noexcept {
  if (!one.done() || is_planted(defect::awaited_step_overwritten))
    return false;
  auto set = set_of(one);
  // A rank that was never registered may come, and then it joins the run.
  auto lacking = m.shards.size() < m.world_size;
  if (lacking && set.run != run)
    return false;
  for (auto& [rank, s] : m.shards) {
    if (!s->erased && find_version(*s, set) >= 0)
      continue;
    lacking = true;
    if (s->erased ? set.run != run : !may_still_save(*s, set, run))
      return false;
  }
  return lacking;
}

std::vector<std::uint32_t> ranks_without(const model& m, const version_set& set) {
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t rank = 0; rank < m.world_size; ++rank) {
    auto at = m.shards.find(rank);
    if (at == m.shards.end() || at->second->erased || find_version(*at->second, set) < 0)
      ranks.push_back(rank);
  }
  return ranks;
}

bool has_passed(const shard& waiting, const shard& s, const version_set& set) noexcept {
  return std::ranges::any_of(waiting.slots, [&](const slot& one) {
    return one.done() && one.run == set.run && one.step < set.step &&
      find_version(s, set_of(one)) < 0;
  });
}

int slot_to_fill(const model& m, const shard& s, std::uint64_t step, std::uint64_t run) {
  auto kept = protected_slot(s, newest_complete(m));
  auto rank = [step](const slot& one) { return !one.done() ? 0 : one.step == step ? 1 : 2; };
  int best = -1;
  for (std::size_t i = 0; i < s.slots.size(); ++i) {
    auto& one = s.slots[i];
    auto used = is_planted(defect::slot_reused_while_read) ? !one.writer.expired() : one.in_use();
    if (!one.reserved() || used || static_cast<int>(i) == kept || is_awaited(m, one, run))
      continue;
    if (best >= 0) {
      auto& other = s.slots[best];
      if (std::pair{rank(one), one.sequence} >= std::pair{rank(other), other.sequence})
        continue;
    }
    best = static_cast<int>(i);
  }
  return best;
}

bool in_use(const slot_owner& s) noexcept {
  return std::any_of(s.slots.begin(), s.slots.end(), [](const slot& one) { return one.in_use(); });
}

namespace {

shard_summary summarize(const shard& s) {
  shard_summary out;
  out.rank = s.spec.rank;
  out.tensors = s.spec.tensors.tensors.size();
  out.size_bytes = s.shape->size_bytes;
  out.registered = s.registered;
  out.finished = s.finished;
  out.axes = s.spec.axes;
  for (auto& one : s.slots) {
    if (!one.reserved())
      continue;
    out.reserved_bytes += one.reserved_bytes;
    auto empty = one.state == slot_state::empty;
    out.slots.push_back(
      {one.state, empty ? 0 : one.step, one.done() ? one.saved_at_ns : 0, !one.readers.expired()});
  }
  return out;
}

} // namespace

checkpoint_summary summarize(const model& m) {
  checkpoint_summary out{m.name, m.world_size, {}, complete_steps(m)};
  for (auto& [rank, s] : m.shards)
    if (!s->erased)
      out.shards.push_back(summarize(*s));
  return out;
}

std::string first_difference(const layout& there, const layout& asked) {
  auto count = std::min(there.tensors.size(), asked.tensors.size());
  for (std::size_t i = 0; i < count; ++i) {
    auto &a = there.tensors[i], &b = asked.tensors[i];
    if (a != b)
      return fmt::format(
        "tensor {} is {} {} there, {} {} now", i, a.name, describe(a), b.name, describe(b));
  }
  if (there.tensors.size() != asked.tensors.size())
    return fmt::format("{} tensors there, {} now", there.tensors.size(), asked.tensors.size());
  return {};
}

} // namespace millrace::storage::pmem
