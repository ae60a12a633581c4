// Lists the messages. The pool decides about memory and names; this actor exposes regions to those
// who write them or open the set, and takes them back.
#include <millrace/actors/loader/data_server.hpp>
#include <millrace/actors/loader/filling_table.hpp>
#include <millrace/actors/loader/set_exposure.hpp>
#include <millrace/actors/loader/window_table.hpp>
#include <millrace/actors/provider_actor.hpp>
#include <millrace/core/codec.hpp>
#include <millrace/core/planted_defect.hpp>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <vector>

namespace millrace::actors {

namespace {

using storage::samples::set_filling;
using storage::samples::set_region;
using storage::samples::stored_set;
using transport::region;

constexpr std::uint32_t listed_max = 1000;   // sets of one page
constexpr std::uint32_t listed_at_once = 16; // their descriptions may be large

// The regions of a set, as long as somebody may reach them. They are withdrawn before the set goes.
struct exposed_set {
  std::shared_ptr<const stored_set> set; // null while it is written
  std::shared_ptr<set_filling> filling;
  std::vector<region> regions;
};
using exposed_ptr = std::shared_ptr<exposed_set>;

// A lease or a reservation; the joining of a filling; or a stay, which keeps a set that is
// `while_used` for a connection that has preloaded it.
struct held_set {
  peer_id peer;
  caf::actor_addr through; // the actor that asked for the connection; may be null
  std::shared_ptr<void> place;
  exposed_ptr memory;                                     // null: a stay, or joined
  set_id mark = {};                                       // see `open_set_request`
  set_id used = {};                                       // the set that it holds; nil: none yet
  std::shared_ptr<const stored_set> stays_with = nullptr; // of a stay
};

// Those who hold a set that was published.
struct set_use {
  std::string name;
  std::uint64_t holders = 0;
  std::vector<std::uint64_t> stays = {}; // their numbers
};

// Exposes what the set has of each region. Nobody can reach what lies behind it.
status expose_all(exposed_set& into, const std::vector<set_region>& regions, access_mode how) {
  auto made = expose_regions(regions, how);
  if (!made)
    return made.error();
  into.regions = std::move(*made);
  return {};
}

class data_server : public provider_actor<data_server_actor> {
public:
  data_server(caf::actor_config& config, data_server_deps deps)
    : provider_actor(config, deps.name, deps.fabric, deps.limits), deps_(std::move(deps)) {}

  const char* name() const override { return "data_server"; }

  behavior_type make_behavior() override {
    using self = data_server;
    end_lost_uses();
    return handlers(
      &self::reserve, &self::publish, &self::open, &self::close, &self::unload, &self::list,
      &self::write_window, &self::take_values, &self::return_values, &self::count_window,
      &self::join, &self::claim);
  }

protected:
  void give_up_all(const status&) override {
    for (auto& [number, held] : std::exchange(held_, {})) {
      withdraw(std::move(held.memory));
      end_window(number);
      end_filling(number);
    }
  }

  void ended(const caf::actor_addr& actor, const status&) override {
    if (is_planted(defect::set_lease_kept))
      return;
    for (auto i = held_.begin(); i != held_.end();) {
      auto next = std::next(i);
      if (i->second.through == actor)
        let_go(i);
      i = next;
    }
  }

private:
  caf::result<set_reservation> reserve(reserve_set_request& request) {
    auto through = watch_asker();
    auto place = deps_.memory.leases->lend(request.from.holder);
    if (!place)
      return to_caf_error(place.error());
    auto reserved = deps_.memory.pool->reserve(std::move(request.set), owner_of(request.from));
    if (!reserved)
      return to_caf_error(reserved.error());
    for (auto& name : reserved->evicted)
      log().info("working set evicted, as another one needs its memory name={}", name);
    if (reserved->existing) {
      auto& stored = reserved->existing;
      auto& set = reserved->described;
      if (set.while_used && !stays(request.from, through, set.id))
        begin_stay(keep({request.from.peer, through, std::move(*place), nullptr}), stored);
      return set_reservation{set, true, 0, {}};
    }
    auto memory = std::make_shared<exposed_set>();
    memory->filling = std::move(reserved->filling);
    auto& filling = *memory->filling;
    if (auto bad = expose_all(*memory, filling.regions(), access_mode::write); !bad.ok())
      return to_caf_error(bad);
    set_reservation out{filling.info(), false, 0, handles_of(memory->regions)};
    auto made = memory->filling;
    out.number = keep({request.from.peer, through, std::move(*place), std::move(memory)});
    fillings_.begin(out.number, made);
    return out;
  }

  // Withdrawing waits for those who write; so it is done on a mover.
  caf::result<set_info> publish(const publish_set_request& request) {
    auto found = find(request.reservation, request.from);
    if (found == held_.end() || !found->second.memory || !found->second.memory->filling)
      return to_caf_error(unknown(request.reservation));
    if (auto bad = fillings_.check_written(request.reservation); !bad.ok())
      return to_caf_error(bad);
    auto memory = std::exchange(found->second.memory, nullptr);
    auto joined = fillings_.close(request.reservation);
    if (!memory->filling->info().while_used)
      held_.erase(found);
    return answer_from<set_info, std::shared_ptr<const stored_set>>(
      [&](completion<std::shared_ptr<const stored_set>> done) {
        context_->fabric->movers()->submit(
          1,
          [memory, joined](std::uint32_t) {
            memory->regions.clear();
            for (auto& one : joined)
              one.memory->regions.clear();
          },
          [memory, pool = deps_.memory.pool, done = std::move(done)]() mutable {
            done(pool->publish(std::exchange(memory->filling, nullptr)));
          });
      },
      [this, number = request.reservation](const std::shared_ptr<const stored_set>& set) {
        auto info = set->info();
        if (info.while_used)
          stay_published(number, set);
        log().info(
          "working set {} name={} samples={} size={}",
          is_extension(info) ? "appended to" : "preloaded", info.name, info.samples,
          info.size_bytes);
        return info;
      },
      request.timeout_ms);
  }

  caf::result<opened_set> open(const open_set_request& request) {
    auto through = watch_asker();
    auto found = deps_.memory.pool->look_up(request.name, request.id);
    if (!found)
      return to_caf_error(found.error());
    auto& set = found->set;
    auto place = deps_.memory.leases->lend(request.from.holder);
    if (!place)
      return to_caf_error(place.error());
    auto memory = exposed(set);
    if (!memory)
      return to_caf_error(memory.error());
    opened_set out;
    out.set = std::move(found->info);
    auto handles = handles_of((*memory)->regions);
    auto& regions = set->regions();
    for (std::size_t i = 0; i < handles.size(); ++i)
      out.regions.push_back({handles[i], regions[i].index, regions[i].generation});
    out.generations = deps_.memory.generations->handle();
    out.lease =
      keep({request.from.peer, through, std::move(*place), std::move(*memory), request.mark});
    begin_use(out.lease, out.set);
    if (is_window(out.set))
      windows_.open(out.lease, set);
    return out;
  }

  caf::result<done_reply> close(const close_set_request& request) {
    auto found = find_lease(held_, request.number, request.mark, request.from);
    if (found == held_.end())
      return to_caf_error(unknown(request.number));
    let_go(found);
    return done_reply{};
  }

  caf::result<done_reply> unload(const unload_set_request& request) {
    auto set = deps_.memory.pool->find(request.name, request.id);
    auto gone = deps_.memory.pool->unload(request.name, request.id, owner_of(request.from));
    if (!gone.ok())
      return to_caf_error(gone);
    auto appended = set && is_extension((*set)->info());
    log().info(
      "working set {} name={}",
      !set         ? "given up"
        : appended ? "without an append"
                   : "unloaded",
      request.name);
    if (set)
      end_stays((*set)->info().id);
    return done_reply{};
  }

  caf::result<set_list> list(const list_sets_request& request) {
    auto most = request.count_max == 0 ? listed_max : std::min(request.count_max, listed_max);
    set_list out;
    std::uint64_t bytes = 0;
    for (auto after = request.after; out.sets.size() < most;) {
      auto some = deps_.memory.pool->list(
        request.prefix, after, std::min<std::size_t>(listed_at_once, most - out.sets.size()),
        request.parts);
      if (some.empty())
        break;
      for (auto& set : some) {
        bytes += encode(set).size();
        if (!out.sets.empty() && bytes > deps_.page_bytes_max)
          return out; // the next page begins with it
        after = set.name;
        out.sets.push_back(std::move(set));
      }
    }
    return out;
  }

  // Who writes decides what others read; so it is the owner of the window.
  caf::result<writable_window> write_window(const write_window_request& request) {
    auto found = find(request.lease, request.from);
    if (found == held_.end() || !found->second.memory)
      return to_caf_error(unknown(request.lease));
    auto& set = found->second.memory->set;
    auto who = owner_of(request.from);
    if (set && !storage::samples::may_change(set->info().owner, who))
      return to_caf_error(
        {errc::permission_denied, "the window {} belongs to {}, and {} may not write to it",
         set->info().name, set->info().owner, who});
    return answered<writable_window>(
      windows_.write(request.lease).map([](std::vector<bulk_handle> regions) {
        return writable_window{std::move(regions)};
      }));
  }

  caf::result<taken_values> take_values(const take_values_request& request) {
    if (find(request.lease, request.from) == held_.end())
      return to_caf_error(unknown(request.lease));
    return answered(windows_.take(request));
  }

  caf::result<done_reply> return_values(const return_values_request& request) {
    if (find(request.lease, request.from) == held_.end())
      return to_caf_error(unknown(request.lease));
    auto bad = windows_.give_back(request);
    return bad.ok() ? caf::result<done_reply>{done_reply{}} : to_caf_error(bad);
  }

  caf::result<window_counts> count_window(const count_window_request& request) {
    auto set = deps_.memory.pool->find(request.name);
    if (!set)
      return to_caf_error(set.error());
    if (!is_window((*set)->info()))
      return to_caf_error(
        {errc::invalid_argument, "working set {} has all samples in memory, and no window",
         request.name});
    return windows_.counts(*set);
  }

  // What is there already needs nobody to write it.
  caf::result<set_reservation> join(join_set_request& request) {
    auto through = watch_asker();
    auto& wanted = request.set;
    if (is_divided(wanted))
      if (auto set = deps_.memory.pool->find(wanted.name, wanted.division.whole))
        if ((*set)->info().division == wanted.division)
          return set_reservation{(*set)->info(), true, 0, {}};
    auto place = deps_.memory.leases->lend(request.from.holder);
    if (!place)
      return to_caf_error(place.error());
    auto number = unused_number(held_);
    filler asker{owner_of(request.from), request.from.peer, through ? through.id() : 0};
    auto joined = fillings_.join(number, std::move(wanted), asker, now());
    if (!joined)
      return to_caf_error(joined.error());
    auto counted = counted_as_joined(std::move(*place));
    held_.emplace(number, held_set{request.from.peer, through, std::move(counted), nullptr});
    return std::move(*joined);
  }

  // Counts as long as the place is held.
  std::shared_ptr<void> counted_as_joined(std::shared_ptr<void> place) const {
    auto joins = deps_.memory.joins;
    ++joins->now;
    ++joins->all;
    auto* raw = place.get();
    return {raw, [joins, place = std::move(place)](void*) { --joins->now; }};
  }

  caf::result<claimed_blocks> claim(const claim_blocks_request& request) {
    if (find(request.number, request.from) == held_.end())
      return to_caf_error(unknown(request.number));
    auto claimed = fillings_.claim(request, now());
    for (auto number : fillings_.stalled(request.number, now()))
      end_stalled(number);
    return answered(std::move(claimed));
  }

  // It may write no more, and then others get its blocks. It may join again.
  void end_stalled(std::uint64_t number) {
    auto found = held_.find(number);
    if (found == held_.end())
      return;
    log().warn(
      "a process that helps to preload a set has stood still, and others read its part peer={}",
      to_string(found->second.peer));
    let_go(found);
  }

  template <class T>
  static caf::result<T> answered(result<T> outcome) {
    if (!outcome)
      return to_caf_error(outcome.error());
    return std::move(*outcome);
  }

  void end_window(std::uint64_t lease) {
    if (auto ended = windows_.close(lease))
      withdraw_on_mover(*context_, std::move(ended->memory), std::move(ended->then));
  }

  void end_filling(std::uint64_t number) {
    for (auto& one : fillings_.close(number))
      withdraw_on_mover(*context_, std::move(one.memory), std::move(one.then));
  }

  // Readers of a set share its exposure.
  result<exposed_ptr> exposed(const std::shared_ptr<const stored_set>& set) {
    std::erase_if(open_, [](auto& one) { return one.second.expired(); });
    if (auto known = open_[set->info().id].lock())
      return known;
    auto memory = std::make_shared<exposed_set>();
    memory->set = set;
    if (auto bad = expose_all(*memory, set->regions(), access_mode::read); !bad.ok())
      return fail(bad);
    open_[set->info().id] = memory;
    return memory;
  }

  void let_go(std::map<std::uint64_t, held_set>::iterator at) {
    auto number = at->first;
    auto held = std::move(at->second);
    held_.erase(at);
    withdraw(std::move(held.memory));
    end_window(number);
    end_filling(number);
    end_use(number, held.used);
  }

  // The last one who holds the memory waits for transfers to end, so not here.
  void withdraw(exposed_ptr memory) {
    if (memory)
      context_->fabric->movers()->submit(
        1, [memory = std::move(memory)](std::uint32_t) mutable { memory = nullptr; }, [] {});
  }

  set_use& begin_use(std::uint64_t number, const set_info& set) {
    held_.at(number).used = set.id;
    auto& use = uses_[set.id];
    use.name = set.name;
    ++use.holders;
    return use;
  }

  // A set with which somebody stays makes no room for others.
  void begin_stay(std::uint64_t number, const std::shared_ptr<const stored_set>& set) {
    begin_use(number, set->info()).stays.push_back(number);
    held_.at(number).stays_with = set;
  }

  void end_use(std::uint64_t number, const set_id& id) {
    auto found = uses_.find(id);
    if (found == uses_.end())
      return;
    auto& use = found->second;
    std::erase(use.stays, number);
    if (--use.holders > 0)
      return;
    end_unheld(use.name, id);
    uses_.erase(found);
  }

  void end_unheld(const std::string& name, const set_id& id) {
    if (deps_.memory.pool->end_use(name, id))
      log().info("working set unloaded, as nobody uses it any more name={}", name);
  }

  // There is no name any more to keep.
  void end_stays(const set_id& id) {
    auto found = uses_.find(id);
    if (found == uses_.end())
      return;
    for (auto number : std::exchange(found->second.stays, {}))
      let_go(held_.find(number));
  }

  // Whether a connection stays with a set already.
  bool stays(const asker& from, const caf::actor_addr& through, const set_id& id) const {
    auto found = uses_.find(id);
    return found != uses_.end() && std::ranges::any_of(found->second.stays, [&](auto number) {
             auto& held = held_.at(number);
             return held.peer == from.peer && held.through == through;
           });
  }

  // In the meantime the connection that has preloaded the set may have ended, or the set may have
  // been unloaded.
  void stay_published(std::uint64_t number, const std::shared_ptr<const stored_set>& set) {
    auto& info = set->info();
    auto found = held_.find(number);
    if (found == held_.end()) {
      if (!uses_.contains(info.id))
        end_unheld(info.name, info.id);
      return;
    }
    if (deps_.memory.pool->find(info.name, info.id))
      begin_stay(number, set);
    else
      let_go(found);
  }

  // An actor that has failed has lost the holders of its sets.
  void end_lost_uses() {
    for (auto& set : deps_.memory.pool->list({}, {}, std::numeric_limits<std::size_t>::max(), true))
      if (set.while_used)
        end_unheld(set.name, set.id);
  }

  std::uint64_t keep(held_set one) {
    auto number = unused_number(held_);
    held_.emplace(number, std::move(one));
    return number;
  }

  std::map<std::uint64_t, held_set>::iterator find(std::uint64_t number, const asker& from) {
    return find_lease(held_, number, {}, from);
  }

  status unknown(std::uint64_t number) const {
    return {
      errc::not_found, "{} has no lease or reservation {} of this process", deps_.name, number};
  }

  data_server_deps deps_;
  std::map<std::uint64_t, held_set> held_; // by random numbers
  std::map<set_id, std::weak_ptr<exposed_set>> open_;
  std::map<set_id, set_use> uses_;
  window_table windows_;
  filling_table fillings_;
};

} // namespace

data_server_actor spawn_data_server(caf::actor_system& system, data_server_deps deps) {
  return system.spawn<data_server>(std::move(deps));
}

} // namespace millrace::actors
