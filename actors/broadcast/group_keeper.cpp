// Lists the messages. `group_roll` decides; this actor keeps who waits, and the rings.
#include <millrace/actors/broadcast/group_keeper.hpp>
#include <millrace/actors/broadcast/group_roll.hpp>
#include <millrace/actors/leases.hpp>
#include <millrace/actors/provider_actor.hpp>
#include <millrace/core/model.hpp>
#include <millrace/transport/ring/chunk_ring.hpp>

#include <map>
#include <utility>
#include <vector>

namespace millrace::actors {

namespace {

using transport::ring_shape;

constexpr std::size_t who_bytes_max = 200;
constexpr std::uint32_t epoch_is_over = 1; // the reason of a ring's end

// The memory of one epoch's ring. Members reach it until it is destroyed.
struct group_ring {
  ring_shape shape;
  std::shared_ptr<void> place;
  memory_block memory;
  transport::region exposed;

  void end() const { transport::end_ring({memory.data, memory.size_bytes}, shape, epoch_is_over); }
};
using ring_ptr = std::shared_ptr<group_ring>;

result<ring_ptr> make_ring(
  transport::fabric& fabric, const std::string& name, const ring_shape& shape) {
  auto size = transport::ring_bytes(shape);
  transport::arena_options wanted;
  wanted.name = "group." + name;
  wanted.size_bytes = size;
  wanted.huge_pages = false;
  wanted.sharing = transport::arena_sharing::read_write;
  auto out = std::make_shared<group_ring>();
  out->shape = shape;
  auto block = fabric.make_memory(wanted).and_then(
    [&](const auto& source) { return source->allocate(size, 4096); });
  if (!block)
    return fail(block.error());
  out->memory = std::move(*block);
  if (auto bad = transport::format_ring({out->memory.data, size}, shape); !bad.ok())
    return fail(bad);
  auto exposed = transport::expose(
    {tensor_view{{"the ring of a group", dtype::u8, {size}}, out->memory.data, {}}},
    access_mode::write);
  if (!exposed)
    return fail(exposed.error());
  out->exposed = std::move(*exposed);
  return out;
}

std::uint64_t bytes_of_ring(const group_options& options) {
  return transport::ring_bytes(
    ring_shape_for(options, std::max<std::uint32_t>(options.members_max, 2)));
}

template <class Reply>
struct waiting_member {
  time_point until;
  std::function<void(result<Reply>)> answer;
};

struct live_group {
  group_roll roll;
  std::string owner;
  party holder; // of the rings' places
  ring_ptr ring;
  bool is_making = false;                                       // a ring for the next epoch
  std::map<std::uint64_t, waiting_member<group_epoch>> waiting; // by lease
  std::map<std::uint64_t, waiting_member<group_news>> hearing;  // by lease
  group_epoch current = {};                                     // without a lease
};
using group_ptr = std::shared_ptr<live_group>;

struct group_lease {
  peer_id peer;
  caf::actor_addr through; // the actor that asked for the connection; may be null
  group_ptr of;
  region_key mark;
  std::shared_ptr<void> place;
};

group_news news_of(const status& over) {
  return {!over.ok(), static_cast<std::uint8_t>(over.code()), std::string{over.detail()}};
}

status goes_on(const live_group& group) {
  return {errc::cancelled, "group {} goes on in another epoch", group.roll.name()};
}

class group_keeper : public provider_actor<group_keeper_actor> {
public:
  group_keeper(caf::actor_config& config, group_keeper_deps deps)
    : provider_actor(config, deps.name, deps.fabric, deps.limits), deps_(std::move(deps)) {}

  const char* name() const override { return "group_keeper"; }

  behavior_type make_behavior() override {
    using self = group_keeper;
    return handlers(&self::join, &self::renew, &self::hear, &self::leave);
  }

protected:
  void give_up_all(const status& why) override {
    owed_.give_up_all(why);
    for (auto& [name, group] : std::exchange(groups_, {}))
      drop_ring(std::move(group->ring));
    leases_.clear();
  }

  bool give_up_late(time_point now) override {
    auto more = false;
    for (auto& [name, group] : std::map{groups_}) {
      give_up_late(*group, now);
      more |= !group->waiting.empty() || !group->hearing.empty();
      forget_if_empty(*group);
    }
    return more;
  }

  void ended(const caf::actor_addr& actor, const status& why) override {
    std::vector<std::uint64_t> gone;
    for (auto& [number, lease] : leases_)
      if (lease.through == actor)
        gone.push_back(number);
    // A node that stops ends the connections one after the other.
    auto lost = loss_of(why);
    auto code = lost.code() == errc::unavailable ? errc::unavailable : errc::peer_lost;
    for (auto number : gone)
      lose(number, lost.to_string(), code);
  }

private:
  using lease_iterator = std::map<std::uint64_t, group_lease>::iterator;

  caf::result<group_epoch> join(join_group_request& request) {
    if (auto bad = check(request); !bad.ok())
      return to_caf_error(bad);
    auto through = watch_asker();
    auto place = leases_left_->lend(request.from.holder);
    if (!place)
      return to_caf_error(place.error());
    auto group = find_or_make(request);
    if (!group)
      return to_caf_error(group.error());
    auto lease = unused_number(leases_);
    if (auto bad = (*group)->roll.join({request.rank, lease, request.who}, request.size);
        !bad.ok()) {
      forget_if_empty(**group);
      return to_caf_error(bad);
    }
    leases_.emplace(
      lease, group_lease{request.from.peer, through, *group, request.mark, std::move(*place)});
    return wait(**group, lease, request.patience_ms);
  }

  status check(const join_group_request& request) const {
    if (auto bad = validate_model_name(request.name); !bad.ok())
      return bad.within("a group");
    if (auto least = bytes_of_ring(deps_.options); deps_.options.memory_bytes < least)
      return {
        errc::unsupported,
        "{} has {} bytes for groups (groups.memory), and a ring needs {} "
        "(groups.ring)",
        deps_.name, deps_.options.memory_bytes, least};
    if (request.size < 1 || request.size > deps_.options.members_max)
      return {
        errc::invalid_argument, "group {} of {} members: 1 to {} (groups.members_max)",
        request.name, request.size, deps_.options.members_max};
    if (request.who.size() > who_bytes_max)
      return {errc::invalid_argument, "a member of group {} has too long a name", request.name};
    return {};
  }

  result<group_ptr> find_or_make(const join_group_request& request) {
    auto who = owner_of(request.from);
    auto [at, made] = groups_.try_emplace(request.name);
    if (made)
      at->second = std::make_shared<live_group>(live_group{
        {request.name, request.size}, who, request.from.holder, nullptr, false, {}, {}, {}});
    if (at->second->owner != who)
      return fail(
        errc::permission_denied,
        "group {} belongs to {}, and its members share memory: {} may not "
        "join; choose another name",
        request.name, at->second->owner, who);
    return at->second;
  }

  caf::result<group_epoch> renew(const renew_group_request& request) {
    auto found = find(request.lease, {}, request.from);
    if (found == leases_.end())
      return to_caf_error(unknown());
    auto& group = *found->second.of;
    // The answer that told it of this epoch was lost.
    if (request.epoch + 1 == group.roll.epoch() && group.roll.has(request.lease)) {
      auto out = group.current;
      out.lease = request.lease;
      return out;
    }
    if (auto bad = group.roll.renew(request.lease, request.epoch); !bad.ok())
      return to_caf_error(bad);
    return wait(group, request.lease, request.patience_ms);
  }

  caf::result<group_epoch> wait(live_group& group, std::uint64_t lease, std::uint32_t patience_ms) {
    auto rp = make_response_promise<group_epoch>();
    auto until = deadline_of(patience_ms, context_->bounds, now());
    group.waiting.emplace(lease, waiting_member<group_epoch>{until, owed_.keep(rp)});
    watch();
    begin_if_complete(group);
    return rp;
  }

  caf::result<group_news> hear(const group_news_request& request) {
    auto found = find(request.lease, {}, request.from);
    if (found == leases_.end())
      return to_caf_error(unknown());
    auto& group = *found->second.of;
    if (request.epoch != group.roll.epoch())
      return news_of(goes_on(group));
    if (!group.roll.over().ok())
      return news_of(group.roll.over());
    if (group.hearing.contains(request.lease))
      return to_caf_error(
        {errc::busy, "{}: a request of this member for news waits already", deps_.name});
    auto rp = make_response_promise<group_news>();
    auto until = deadline_of(request.wait_ms, context_->bounds, now());
    group.hearing.emplace(request.lease, waiting_member<group_news>{until, owed_.keep(rp)});
    watch();
    return rp;
  }

  caf::result<done_reply> leave(const leave_group_request& request) {
    auto found = find(request.lease, request.mark, request.from);
    if (found == leases_.end())
      return to_caf_error(unknown());
    lose(found->first, "it left");
    return done_reply{};
  }

  // The answers of a group that begins may bring its members back here, but only as messages.
  void begin_if_complete(live_group& group) {
    if (group.is_making || !group.roll.may_begin() || group.roll.waiting().empty())
      return;
    auto members = group.roll.waiting().size();
    if (members == 1)
      return begin(group, nullptr);
    // A group has one place, whatever becomes of its former ring.
    auto place = group.ring ? result<std::shared_ptr<void>>{group.ring->place}
                            : deps_.rings->lend(group.holder);
    if (!place)
      return refuse_waiting(group, place.error());
    group.is_making = true;
    make_on_mover(group, members, std::move(*place));
  }

  // Memory is touched when it is made, which takes long.
  void make_on_mover(live_group& group, std::size_t members, std::shared_ptr<void> place) {
    auto made = std::make_shared<result<ring_ptr>>(fail(errc::internal, "no ring was made"));
    auto shared = groups_.at(group.roll.name());
    auto home = context_->home<void>([this, made, members, place = std::move(place),
                                      weak = std::weak_ptr{shared}](const result<void>&) {
      auto of = weak.lock();
      if (!of)
        return drop_ring(made->value_or(nullptr));
      if (*made)
        (**made)->place = place;
      of->is_making = false;
      on_ring(*of, members, std::move(*made));
    });
    auto shape = ring_shape_for(deps_.options, static_cast<std::uint32_t>(members));
    context_->fabric->movers()->submit(
      1,
      [made, shape, name = group.roll.name(), fabric = context_->fabric](std::uint32_t) {
        *made = make_ring(*fabric, name, shape);
      },
      [home = std::move(home)]() mutable { home({}); });
  }

  // Meanwhile some may have gone, or come.
  void on_ring(live_group& group, std::size_t members, result<ring_ptr> ring) {
    if (!ring)
      return refuse_waiting(group, ring.error().within("the ring of group " + group.roll.name()));
    if (group.roll.may_begin() && group.roll.waiting().size() == members)
      return begin(group, std::move(*ring));
    drop_ring(std::move(*ring));
    begin_if_complete(group);
    forget_if_empty(group);
  }

  void begin(live_group& group, ring_ptr ring) {
    group_epoch out;
    for (auto& one : group.roll.waiting())
      out.members.push_back({one.rank, one.who});
    if (ring) {
      out.ring = ring->exposed.handle();
      out.chunk_bytes = ring->shape.chunk_bytes;
      out.chunks = ring->shape.chunks;
    }
    auto former = std::exchange(group.ring, std::move(ring));
    group.roll.begin();
    out.epoch = group.roll.epoch();
    group.current = out;
    tell_over(group, goes_on(group));
    if (former)
      former->end();
    drop_ring(std::move(former));
    log().info(
      "group epoch begins name={} epoch={} members={}", group.roll.name(), out.epoch,
      out.members.size());
    for (auto& [lease, one] : std::exchange(group.waiting, {})) {
      out.lease = lease;
      one.answer(out);
    }
  }

  void refuse_waiting(live_group& group, const status& why) {
    for (auto& [lease, one] : std::exchange(group.waiting, {})) {
      take_back(group, lease);
      one.answer(fail(why));
    }
    forget_if_empty(group);
  }

  // A member stays one; who has not joined yet is forgotten.
  void take_back(live_group& group, std::uint64_t lease) {
    group.roll.withdraw(lease);
    if (!group.roll.has(lease))
      leases_.erase(lease);
  }

  void give_up_late(live_group& group, time_point now) {
    for (auto i = group.waiting.begin(); i != group.waiting.end();) {
      auto at = i++;
      if (at->second.until >= now)
        continue;
      auto one = group.waiting.extract(at);
      auto missing = group.roll.missing();
      take_back(group, one.key());
      one.mapped().answer(
        fail(errc::deadline_exceeded, "group {}: {}", group.roll.name(), missing));
    }
    for (auto i = group.hearing.begin(); i != group.hearing.end();) {
      auto at = i++;
      if (at->second.until < now)
        group.hearing.extract(at).mapped().answer(group_news{});
    }
  }

  void lose(std::uint64_t lease, const std::string& why, errc code = errc::peer_lost) {
    auto node = leases_.extract(lease);
    if (!node)
      return; // forgotten with another one that went
    auto group = node.mapped().of;
    if (auto one = group->waiting.extract(lease))
      one.mapped().answer(fail(errc::cancelled, "the member left group {}", group->roll.name()));
    if (auto one = group->hearing.extract(lease))
      one.mapped().answer(group_news{});
    auto was_over = !group->roll.over().ok();
    group->roll.lose(lease, why, code);
    if (auto& over = group->roll.over(); !over.ok() && !was_over) {
      log().info("group epoch is over name={} why=\"{}\"", group->roll.name(), over.detail());
      if (group->ring)
        group->ring->end(); // roots send nothing more
      tell_over(*group, over);
    }
    begin_if_complete(*group);
    forget_if_empty(*group);
  }

  static void tell_over(live_group& group, const status& over) {
    for (auto& [lease, one] : std::exchange(group.hearing, {}))
      one.answer(news_of(over));
  }

  void forget_if_empty(live_group& group) {
    if (!group.roll.is_empty() || group.is_making)
      return;
    drop_ring(std::move(group.ring));
    groups_.erase(std::string{group.roll.name()});
  }

  // Withdrawing waits for transfers, and the memory is unmapped: both on a mover.
  void drop_ring(ring_ptr ring) {
    if (ring)
      context_->fabric->movers()->submit(
        1, [ring = std::move(ring)](std::uint32_t) mutable { ring = nullptr; }, [] {});
  }

  lease_iterator find(std::uint64_t number, const region_key& mark, const asker& from) {
    return find_lease(leases_, number, mark, from);
  }

  status unknown() const {
    return {
      errc::not_found,
      "{} has no such member: it left, or the node was restarted; join the group "
      "again",
      deps_.name};
  }

  const group_keeper_deps deps_;
  const std::shared_ptr<lent_places> leases_left_ = std::make_shared<lent_places>(
    deps_.options.leases_max, "memberships in groups (groups.leases_max)");
  std::map<std::string, group_ptr> groups_;
  std::map<std::uint64_t, group_lease> leases_;
  open_answers owed_;
};

} // namespace

std::shared_ptr<lent_places> places_for_rings(const group_options& options) {
  return std::make_shared<lent_places>(
    options.memory_bytes / bytes_of_ring(options), "rings of groups (groups.memory)");
}

group_keeper_actor spawn_group_keeper(caf::actor_system& system, group_keeper_deps deps) {
  return system.spawn<group_keeper>(std::move(deps));
}

} // namespace millrace::actors
