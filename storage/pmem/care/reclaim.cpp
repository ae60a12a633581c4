// Chooses victims without a lock, reads what stays of their models, then checks each victim again
// and frees it. Called when a shard is registered.
#include <millrace/core/log.hpp>
#include <millrace/storage/pmem/care/erase.hpp>
#include <millrace/storage/pmem/care/reclaim.hpp>
#include <millrace/storage/pmem/care/verify.hpp>
#include <millrace/storage/pmem/catalog.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

namespace millrace::storage::pmem {

namespace {

// Versions that always stay for a job that has not ended in order.
constexpr std::size_t versions_kept = 2;

struct victim {
  // 0: no done version; 1: second version of a finished job; 2: old version of a job that did not
  // end in order.
  int order = 0;
  std::uint64_t saved_at_ns = 0;
  std::uint64_t bytes = 0;
  std::shared_ptr<model> of;
  std::uint32_t rank = 0;
  std::uint64_t number = 0;
  std::uint64_t changes = 0; // the slot's count when it was found
};

// Adds the versions of a shard that may be freed, the oldest first. Needs the model's lock.
void add_victims(
  const std::shared_ptr<model>& m, const shard& s, const std::optional<version_set>& newest,
  std::vector<victim>& victims) {
  auto kept = protected_slot(s, newest);
  auto first = victims.size();
  std::size_t done = 0;
  for (std::size_t i = 0; i < s.slots.size(); ++i) {
    auto& one = s.slots[i];
    done += one.done();
    if (
      !one.reserved() || one.in_use() || static_cast<int>(i) == kept || is_awaited(*m, one, m->run))
      continue;
    auto order = !one.done() ? 0 : s.finished ? 1 : 2;
    victims.push_back(
      {order, one.done() ? one.saved_at_ns : 0, one.reserved_bytes, m, s.spec.rank, i,
       one.changes});
  }
  if (s.finished)
    return;
  auto versions = std::partition(
    victims.begin() + static_cast<std::ptrdiff_t>(first), victims.end(),
    [](auto& v) { return v.order == 0; });
  std::sort(
    versions, victims.end(), [](auto& a, auto& b) { return a.saved_at_ns < b.saved_at_ns; });
  auto spare = static_cast<std::ptrdiff_t>(done - std::min(done, versions_kept));
  victims.erase(versions + std::min(spare, victims.end() - versions), victims.end());
}

std::vector<victim> find_victims(const pool_state& state) {
  std::vector<victim> victims;
  for (auto& m : state.all()) {
    std::lock_guard guard{m->mutex};
    auto newest = newest_complete(*m);
    for (auto& [rank, s] : m->shards)
      if (!s->registered && !s->erased)
        add_victims(m, *s, newest, victims);
  }
  std::sort(victims.begin(), victims.end(), [](auto& a, auto& b) {
    return std::tie(a.order, a.saved_at_ns) < std::tie(b.order, b.saved_at_ns);
  });
  return victims;
}

/// Models whose remaining versions are whole. Each model is read once, when it is first needed.
class whole_models {
public:
  explicit whole_models(pool_state& state) : state_(state.shared_from_this()) {}

  bool contains(const std::shared_ptr<model>& m) {
    auto [at, fresh] = kept_.try_emplace(m);
    if (fresh) {
      auto kept = verify_kept(state_, m, [this] { return !state_->stopping; });
      if (kept)
        at->second = std::move(*kept);
      else if (kept.error().code() != errc::cancelled)
        log().warn("versions are not reclaimed: {}", kept.error().to_string());
    }
    return at->second.has_value();
  }

  /// Returns true if the same versions stay that were whole then. Needs the model's lock.
  bool still_contains(const std::shared_ptr<model>& m) const {
    auto at = kept_.find(m);
    return at != kept_.end() && at->second == kept_slots(*m);
  }

private:
  std::shared_ptr<pool_state> state_;
  std::map<std::shared_ptr<model>, std::optional<std::vector<kept_slot>>> kept_;
};

// Returns the first victims that together are large enough; none when all together are too small.
std::vector<victim> choose(
  std::vector<victim> victims, std::uint64_t missing_bytes, whole_models& whole) {
  std::vector<victim> chosen;
  std::uint64_t found = 0;
  for (auto& v : victims) {
    // The free space may be fragmented, so one victim is taken in any case, and the caller tries
    // again.
    if (!chosen.empty() && found >= missing_bytes)
      break;
    if (v.order > 0 && !whole.contains(v.of))
      continue;
    found += v.bytes;
    chosen.push_back(std::move(v));
  }
  if (found < missing_bytes)
    chosen.clear();
  return chosen;
}

// Returns false when the shard has changed since the choice.
result<bool> take(pool_state& state, const victim& v, const whole_models& whole) {
  std::lock_guard guard{v.of->mutex};
  auto s = find_shard(*v.of, v.rank);
  if (!s || s->registered)
    return false;
  auto& one = s->slots[v.number];
  if (!one.reserved() || one.in_use() || one.changes != v.changes)
    return false;
  if (one.done() && !whole.still_contains(v.of))
    return false;
  if (auto bad = release_slot(state, *s, v.number); !bad.ok())
    return fail(std::move(bad));
  return true;
}

} // namespace

result<std::uint64_t> reclaim_space(pool_state& state, std::uint64_t missing_bytes) {
  {
    std::lock_guard guard{state.layout_mutex};
    auto free = state.objects->probe_free().total_bytes;
    missing_bytes -= std::min(missing_bytes, free);
  }
  auto victims = find_victims(state);
  std::uint64_t reclaimable = 0, freed = 0;
  for (auto& v : victims)
    reclaimable += v.bytes;
  if (reclaimable < missing_bytes)
    return 0;
  whole_models whole{state};
  for (auto& v : choose(std::move(victims), missing_bytes, whole)) {
    auto taken = take(state, v, whole);
    if (!taken)
      return fail(taken.error());
    freed += *taken ? v.bytes : 0;
  }
  return freed;
}

} // namespace millrace::storage::pmem
