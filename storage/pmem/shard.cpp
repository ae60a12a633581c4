// Which step is complete, which slot is next.
#include <millrace/core/digest.hpp>
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

std::shared_ptr<stored_version> find_stored(const model& m) {
  for (auto& [number, v] : m.versions)
    if (!v->erased)
      return v;
  return nullptr;
}

model_summary summarize(const stored_version& v) {
  return {v.spec.name,      v.number(),   v.size_bytes, v.spec.tensors.tensors.size(),
          v.stored_at_ns(), v.spec.pinned};
}

std::uint32_t slot_owner::reserved_slots() const noexcept {
  return static_cast<std::uint32_t>(
    std::count_if(slots.begin(), slots.end(), [](const slot& s) { return s.reserved(); }));
}

std::uint64_t time_of_save(model& m, std::uint64_t now_ns) noexcept {
  return m.last_saved_at_ns = std::max(m.last_saved_at_ns + 1, now_ns);
}

namespace {

// Per step: how many shards have it done, and the last sequence number among them.
struct step_count {
  std::uint32_t shards = 0;
  std::uint64_t sequence = 0;
};

std::map<std::uint64_t, step_count> count_steps(const model& m) {
  std::map<std::uint64_t, step_count> steps;
  for (auto& [rank, s] : m.shards) {
    std::map<std::uint64_t, std::uint64_t> own;
    if (!s->erased)
      for (auto& one : s->slots)
        if (one.done())
          own[one.step] = std::max(own[one.step], one.sequence);
    for (auto& [step, sequence] : own) {
      auto& count = steps[step];
      ++count.shards;
      count.sequence = std::max(count.sequence, sequence);
    }
  }
  return steps;
}

} // namespace

std::vector<std::uint64_t> complete_steps(const model& m) {
  std::vector<std::uint64_t> complete;
  for (auto& [step, count] : count_steps(m))
    if (count.shards == m.world_size)
      complete.push_back(step);
  return complete;
}

std::optional<std::uint64_t> newest_complete_step(const model& m) {
  std::optional<std::uint64_t> newest;
  std::uint64_t sequence = 0;
  for (auto& [step, count] : count_steps(m))
    if (count.shards == m.world_size && count.sequence >= sequence)
      newest = step, sequence = count.sequence;
  return newest;
}

int find_version(const shard& s, std::uint64_t step) noexcept {
  int found = -1;
  for (std::size_t i = 0; i < s.slots.size(); ++i) {
    auto& one = s.slots[i];
    if (one.done() && one.step == step && (found < 0 || one.sequence > s.slots[found].sequence))
      found = static_cast<int>(i);
  }
  return found;
}

int protected_slot(const model& m, const shard& s) {
  if (auto step = newest_complete_step(m))
    return find_version(s, *step);
  int newest = -1;
  for (std::size_t i = 0; i < s.slots.size(); ++i)
    if (s.slots[i].done() && (newest < 0 || s.slots[i].sequence > s.slots[newest].sequence))
      newest = static_cast<int>(i);
  return newest;
}

int slot_to_fill(const model& m, const shard& s, std::uint64_t step) {
  auto kept = protected_slot(m, s);
  auto rank = [step](const slot& one) { return !one.done() ? 0 : one.step == step ? 1 : 2; };
  int best = -1;
  for (std::size_t i = 0; i < s.slots.size(); ++i) {
    auto& one = s.slots[i];
    if (!one.reserved() || one.in_use() || static_cast<int>(i) == kept)
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
      return "tensor " + std::to_string(i) + " is " + a.name + " " + describe(a) + " there, " +
        b.name + " " + describe(b) + " now";
  }
  if (there.tensors.size() != asked.tensors.size())
    return std::to_string(there.tensors.size()) + " tensors there, " +
      std::to_string(asked.tensors.size()) + " now";
  return {};
}

} // namespace millrace::storage::pmem
