// The repack of a pool: frees slots, then copies versions to better places. Called by the store.
#include <millrace/core/kill_point.hpp>
#include <millrace/core/log.hpp>
#include <millrace/storage/pmem/care/copy.hpp>
#include <millrace/storage/pmem/care/erase.hpp>
#include <millrace/storage/pmem/care/repack.hpp>
#include <millrace/storage/pmem/care/verify.hpp>
#include <millrace/storage/pmem/catalog.hpp>

#include <algorithm>
#include <exception>
#include <optional>

namespace millrace::storage::pmem {

namespace {

// libpmemobj returns the smallest piece that fits, not the lowest, so several are compared.
constexpr int places_max = 8;

struct candidate {
  std::shared_ptr<model> of;
  table_key key;
  std::uint64_t number = 0; // the slot's number
  std::uint64_t at = 0;     // the end of its last extent
};

/// A better place for a slot, reserved.
struct new_place {
  std::unique_ptr<change> into;
  slot made;
};

std::uint64_t lowest(const slot& s) {
  std::uint64_t low = ~0ull;
  for (auto& e : s.extents)
    low = std::min(low, e.offset);
  return low;
}

// Null when the owner is gone or erased. Needs the model's lock.
std::shared_ptr<slot_owner> find_owner(const model& m, const table_key& key) {
  if (key.kind == entry_kind::shard)
    return find_shard(m, static_cast<std::uint32_t>(key.number));
  auto stored = find_stored(m);
  return stored && stored->key == key ? stored : nullptr;
}

bool better(const slot& a, const slot& b) {
  return std::pair{a.extents.size(), lowest(a)} < std::pair{b.extents.size(), lowest(b)};
}

/// Frees unneeded slots of models whose other versions are whole. Then copies fragmented or high
/// versions to better places. Each is switched over in one publish, so that a crash leaves the old
/// place or the new one.
class repacking {
public:
  repacking(std::shared_ptr<pool_state> state, progress_callback progress)
    : state_(std::move(state)), progress_(std::move(progress)) {}

  result<repack_report> run() {
    report_.largest_free_bytes_before = largest_free();
    for (auto& m : state_->all())
      total_ += reserved_bytes(*m);
    for (auto& m : state_->all()) {
      if (!goes_on(0))
        break;
      if (auto bad = free_unneeded(m); !bad.ok())
        return fail(std::move(bad));
    }
    for (auto& one : candidates()) {
      if (!goes_on(0))
        break;
      if (auto bad = move(one); !bad.ok())
        return fail(std::move(bad));
    }
    report_.largest_free_bytes_after = largest_free();
    report_.stopped_early = stopped_;
    if (!stopped_ && progress_)
      progress_(total_, total_);
    return report_;
  }

private:
  std::uint64_t largest_free() {
    std::lock_guard guard{state_->layout_mutex};
    return state_->objects->probe_free().largest_bytes;
  }

  static std::uint64_t reserved_bytes(model& m) {
    std::lock_guard guard{m.mutex};
    std::uint64_t sum = 0;
    for (auto& [rank, s] : m.shards)
      for (auto& one : s->slots)
        sum += one.reserved_bytes;
    for (auto& [number, v] : m.versions)
      sum += v->slots[0].reserved_bytes;
    return sum;
  }

  bool goes_on(std::uint64_t bytes) {
    seen_ = std::min(seen_ + bytes, total_);
    if (!stopped_ && (state_->stopping || (progress_ && !progress_(seen_, total_))))
      stopped_ = true;
    return !stopped_;
  }

  status free_unneeded(const std::shared_ptr<model>& m) {
    std::optional<std::vector<kept_slot>> whole;
    if (has_spare_versions(*m))
      whole = whole_slots(m);
    std::lock_guard guard{m->mutex};
    auto spare = spare_slots(*m);
    auto may_go = !spare.empty() && kept_slots(*m) == whole;
    for (auto& [s, number] : spare) {
      if (s->slots[number].done() && !may_go) {
        ++report_.skipped;
        continue;
      }
      if (auto bad = free_one(*s, number); !bad.ok())
        return bad;
    }
    return {};
  }

  // The slots that stay of a model, if their versions are whole.
  std::optional<std::vector<kept_slot>> whole_slots(const std::shared_ptr<model>& m) {
    auto kept = verify_kept(state_, m, [this] { return goes_on(0); });
    if (kept)
      return std::move(*kept);
    if (kept.error().code() != errc::cancelled)
      log().warn("versions are not freed: {}", kept.error().to_string());
    return std::nullopt;
  }

  struct spare_slot {
    std::shared_ptr<shard> of;
    std::size_t number = 0;
  };

  // The slots that may be freed, of shards without an attached job. Needs the model's lock.
  static std::vector<spare_slot> spare_slots(const model& m) {
    std::vector<spare_slot> spare;
    auto newest = newest_complete(m);
    for (auto& [rank, s] : m.shards) {
      if (s->registered || s->erased)
        continue;
      auto kept = protected_slot(*s, newest);
      for (std::size_t i = 0; i < s->slots.size(); ++i) {
        auto& one = s->slots[i];
        auto stays = static_cast<int>(i) == kept || is_awaited(m, one, m.run);
        if (one.reserved() && (!one.done() || s->finished) && !stays)
          spare.push_back({s, i});
      }
    }
    return spare;
  }

  static bool has_spare_versions(model& m) {
    std::lock_guard guard{m.mutex};
    return std::ranges::any_of(
      spare_slots(m), [](auto& spare) { return spare.of->slots[spare.number].done(); });
  }

  status free_one(shard& s, std::uint64_t number) {
    auto& one = s.slots[number];
    if (one.in_use()) {
      ++report_.skipped;
      return {};
    }
    auto bytes = one.reserved_bytes;
    auto was = one.state;
    if (auto bad = release_slot(*state_, s, number); !bad.ok())
      return bad;
    report_.freed_bytes += bytes;
    report_.versions_freed += was == slot_state::done;
    report_.remains_freed += was == slot_state::active;
    goes_on(bytes);
    return {};
  }

  // The highest versions first, to move them into gaps below.
  std::vector<candidate> candidates() {
    std::vector<candidate> found;
    for (auto& m : state_->all()) {
      std::lock_guard guard{m->mutex};
      for (auto& [rank, s] : m->shards)
        add_candidates(m, *s, found);
      for (auto& [number, v] : m->versions)
        add_candidates(m, *v, found);
    }
    std::sort(found.begin(), found.end(), [](auto& a, auto& b) { return a.at > b.at; });
    return found;
  }

  static void add_candidates(
    const std::shared_ptr<model>& m, const slot_owner& s, std::vector<candidate>& found) {
    for (std::size_t i = 0; !s.erased && i < s.slots.size(); ++i) {
      auto& one = s.slots[i];
      if (!one.done() || one.extents.empty())
        continue;
      std::uint64_t end = 0;
      for (auto& e : one.extents)
        end = std::max(end, e.offset + e.length);
      found.push_back({m, s.key, i, end});
    }
  }

  status move(const candidate& one) {
    slot_owner shape;
    std::vector<std::uint64_t> digests;
    {
      std::lock_guard guard{one.of->mutex};
      auto s = find_owner(*one.of, one.key);
      if (!s || !s->slots[one.number].done())
        return {};
      if (s->slots[one.number].in_use()) {
        ++report_.skipped;
        return {};
      }
      auto read = read_digests(state_->objects->base(), *s, one.number);
      if (!read)
        return read.error();
      digests = std::move(*read);
      shape = *s;
    }
    auto& old = shape.slots[one.number];
    auto place = find_place(shape, one.number);
    goes_on(old.reserved_bytes);
    if (!place)
      return {};
    MILLRACE_KILL_POINT("pmem.repack.reserved");
    auto copied =
      copy_version(*state_, shape, old, place->made, digests, [this] { return goes_on(0); });
    if (!copied.ok()) {
      // A damaged version stays where it is; the error is reported when it is restored. A slot that
      // was filled again is no error.
      if (copied.code() != errc::cancelled && is_unchanged(one, old))
        log().warn("a version was not moved: {}", copied.to_string());
      ++report_.skipped;
      return {};
    }
    return switch_over(one, old, *place, digests);
  }

  std::optional<new_place> find_place(const slot_owner& s, std::uint64_t number) {
    auto& old = s.slots[number];
    std::lock_guard guard{state_->layout_mutex};
    std::vector<new_place> places;
    for (auto i = 0; i < places_max; ++i) {
      auto into = std::make_unique<change>(*state_->objects);
      auto made = reserve_slot(*state_, *into, s, number, old.extra_bytes);
      if (!made)
        break;
      places.push_back({std::move(into), std::move(*made)});
    }
    // Completes the writes to the places that are given up below.
    state_->persist.fence();
    auto best = std::min_element(
      places.begin(), places.end(), [](auto& a, auto& b) { return better(a.made, b.made); });
    if (best == places.end() || !better(best->made, old))
      return std::nullopt;
    return std::move(*best);
  }

  static bool is_unchanged(const candidate& one, const slot& old) {
    std::lock_guard guard{one.of->mutex};
    auto s = find_owner(*one.of, one.key);
    return s && s->slots[one.number].changes == old.changes;
  }

  // If the slot was filled, freed or opened while it was copied, the copy is dropped.
  status switch_over(
    const candidate& one, const slot& old, new_place& place,
    const std::vector<std::uint64_t>& digests) {
    std::lock_guard guard{one.of->mutex};
    auto s = find_owner(*one.of, one.key);
    if (!s || s->slots[one.number].changes != old.changes || s->slots[one.number].in_use()) {
      ++report_.skipped;
      return {};
    }
    auto& now = s->slots[one.number];
    auto next = now;
    next.object = place.made.object;
    next.object_bytes = place.made.object_bytes;
    next.extra_room = place.made.extra_room;
    next.record_at = place.made.record_at;
    next.extents = place.made.extents;
    next.reserved_bytes = place.made.reserved_bytes;
    if (auto bad = write_record(*state_, *s, one.number, next, digests); !bad.ok())
      return bad;
    set_object(*state_, *place.into, *s, one.number, next.object);
    free_slot(*place.into, now);
    MILLRACE_KILL_POINT("pmem.repack.before_publish");
    if (auto bad = state_->publish(*place.into); !bad.ok())
      return bad;
    MILLRACE_KILL_POINT("pmem.repack.after_publish");
    ++next.changes;
    now = std::move(next);
    if (auto stored = find_stored(*one.of); stored.get() == s.get())
      stored->taken = {state_->stored, stored->heap_bytes()};
    report_.moved_bytes += s->shape->packed.stream_bytes;
    return {};
  }

  std::shared_ptr<pool_state> state_;
  progress_callback progress_;
  repack_report report_;
  std::uint64_t seen_ = 0;
  std::uint64_t total_ = 0;
  bool stopped_ = false;
};

} // namespace

void start_repack(
  const std::shared_ptr<pool_state>& state, progress_callback progress, gate::ticket ticket,
  completion<repack_report> done) {
  std::unique_lock guard{state->repack_mutex};
  if (state->repacking || state->stopping) {
    guard.unlock();
    return done(fail(errc::busy, "pool {} is being repacked; try again later", state->file.path));
  }
  state->repacking = true;
  io::join_or_detach(state->repacker);
  state->repacker =
    io::start_thread([state, progress = std::move(progress), ticket = std::move(ticket),
                      done = std::move(done)]() mutable {
      auto outcome = repacking{state, std::move(progress)}.run();
      {
        std::lock_guard ended{state->repack_mutex};
        state->repacking = false;
      }
      ticket.reset();
      done(std::move(outcome));
    });
}

} // namespace millrace::storage::pmem
