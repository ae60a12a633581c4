// Joins, and follows the news of its epoch. An answer of the keeper is checked before anything
// relies on it.
#include <millrace/actors/broadcast/group_keeper.hpp>
#include <millrace/core/identity.hpp>
#include <millrace/runtime/client/calls/group_membership.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

namespace millrace::runtime {

namespace {

using transport::chunk_ring;
using transport::ring_shape;

// How long one request waits for news. The client waits longer, so that no answer is lost.
constexpr std::uint32_t news_ms = 60'000, news_answer_ms = 90'000;
// The keeper names who is missing some time after the patience is over: it looks four times a
// second.
constexpr std::uint32_t answer_ms = 2'000;
constexpr std::chrono::milliseconds hears_again_after{500};

std::uint32_t with_answer(std::uint32_t patience_ms) {
  return patience_ms + std::min(answer_ms, UINT32_MAX - patience_ms);
}

result<std::string> node_of(const client_core& core, const group_options& options) {
  auto& where = core.where();
  if (!options.node.empty()) {
    if (std::ranges::find(where.nodes, options.node, &node_entry::name) != where.nodes.end())
      return options.node;
    return fail(errc::not_found, "the cluster has no node {} to keep a group", options.node);
  }
  if (!where.node.empty())
    return where.node;
  if (where.nodes.size() == 1)
    return where.nodes.front().name;
  return fail(
    errc::invalid_argument,
    "the client has {} nodes: group_options::node says which of them keeps "
    "the group, on the host of its members",
    where.nodes.size());
}

ring_shape shape_of(const actors::group_epoch& epoch) {
  return {static_cast<std::uint32_t>(epoch.members.size()), epoch.chunk_bytes, epoch.chunks};
}

} // namespace

template <class Request>
auto group_membership::ask(Request request) const {
  return core_->ask_node<actors::group_service>(
    node_, std::move(request), actors::group_keeper_of_node);
}

void group_membership::join(
  const std::shared_ptr<client_core>& core, const std::string& name, const group_options& options,
  completion<std::shared_ptr<group_membership>> done) {
  auto node = node_of(*core, options);
  if (!node)
    return done(fail(node.error()));
  std::shared_ptr<group_membership> self{
    new group_membership{core->shared_from_this(), name, options, *node}};
  auto mark = random_id<region_key>();
  actors::join_group_request request;
  request.name = name;
  request.rank = options.rank;
  request.size = options.size;
  request.who = options.who.empty() ? fmt::format("process {}", this_process()) : options.who;
  request.patience_ms = core->timeout_ms(options.timeout);
  request.timeout_ms = with_answer(request.patience_ms);
  request.mark = mark;
  self->closing_ = core->when_closed([weak = std::weak_ptr{self}] {
    if (auto alive = weak.lock())
      static_cast<void>(alive->end({errc::cancelled, "the client was closed"}));
  });
  self->ask(std::move(request))
    .chain([self, mark, done = std::move(done)](const result<actors::group_epoch>& joined) {
      if (!joined) {
        // The keeper handles the requests of a connection in their order.
        if (joined.error().code() == errc::deadline_exceeded)
          static_cast<void>(self->ask(actors::leave_group_request{.mark = mark}));
        self->core_->forget_closing(self->closing_);
        return done(fail(self->explained(joined.error())));
      }
      self->enter(*joined, [self, done](const result<void>& entered) {
        if (entered)
          return done(self);
        self->close();
        done(fail(entered.error()));
      });
    });
}

status group_membership::check(const actors::group_epoch& epoch) const {
  auto& all = epoch.members;
  auto in_order =
    std::ranges::adjacent_find(all, [](auto& a, auto& b) { return a.rank >= b.rank; });
  auto mine = std::ranges::find(all, options_.rank, &group_rank::rank);
  if (epoch.lease == 0 || in_order != all.end() || mine == all.end())
    return {errc::protocol_error, "group {}: its node names members that cannot be", name_};
  if (all.size() == 1)
    return {};
  auto shape = shape_of(epoch);
  if (auto bad = transport::check(shape); !bad.ok())
    return {errc::protocol_error, "group {}: {}", name_, bad.detail()};
  if (size_bytes(epoch.ring) != transport::ring_bytes(shape))
    return {errc::protocol_error, "group {}: its ring has {} bytes", name_, size_bytes(epoch.ring)};
  return {};
}

void group_membership::enter(const actors::group_epoch& epoch, completion<void> done) {
  {
    std::lock_guard guard{mutex_};
    lease_ = epoch.lease; // it is given back in any case
    epoch_ = epoch.epoch;
  }
  if (auto bad = check(epoch); !bad.ok())
    return done(fail(bad));
  lane_members who{name_, epoch.members, 0};
  who.self = *who.place_of(options_.rank);
  if (who.members.size() == 1)
    return done(take(epoch.epoch, std::move(who), nullptr));
  core_->runs_on()->fabric()->map(
    epoch.ring, access_mode::write,
    [self = shared_from_this(), number = epoch.epoch, shape = shape_of(epoch), who = std::move(who),
     done = std::move(done)](const result<transport::mapped_region>& mapped) mutable {
      if (!mapped)
        return done(fail(mapped.error().within(fmt::format(
          "group {}: mapping its ring; all members must be on the host of node {}", self->name_,
          self->node_))));
      auto ring =
        chunk_ring::attach({mapped->writable, mapped->size_bytes}, mapped->hold, who.self);
      if (!ring)
        return done(fail(ring.error().within("group " + self->name_)));
      if ((*ring)->shape() != shape)
        return done(
          fail(errc::protocol_error, "group {}: its ring has another shape", self->name_));
      done(self->take(number, std::move(who), std::move(*ring)));
    });
}

// Takes an epoch that has begun.
result<void> group_membership::take(
  std::uint64_t epoch, lane_members who, std::unique_ptr<chunk_ring> ring) {
  std::shared_ptr<group_lane> begun;
  try {
    begun = group_lane::begin(std::move(who), std::move(ring));
  } catch (const std::system_error& e) {
    return fail(errc::no_space, "group {}: no thread for it: {}", name_, e.what());
  }
  {
    std::lock_guard guard{mutex_};
    if (!left_) {
      lane_ = std::move(begun);
      begun = nullptr;
    }
  }
  if (begun) {
    begun->stop(left());
    return fail(left());
  }
  hear(epoch);
  return {};
}

void group_membership::hear(std::uint64_t epoch) {
  actors::group_news_request request;
  {
    std::lock_guard guard{mutex_};
    if (left_ || epoch != epoch_)
      return;
    request.lease = lease_;
  }
  request.epoch = epoch;
  request.wait_ms = news_ms;
  request.timeout_ms = news_answer_ms;
  // `then`, since nobody waits for it, and it must be heard.
  ask(std::move(request)).then([weak = weak_from_this(), epoch](const auto& news) {
    if (auto self = weak.lock())
      self->on_news(epoch, news);
  });
}

void group_membership::on_news(std::uint64_t epoch, const result<actors::group_news>& news) {
  if (news && !news->is_over)
    return hear(epoch);
  // The keeper still counts this member in.
  auto code = news ? errc::ok : news.error().code();
  if (code == errc::busy || code == errc::deadline_exceeded)
    return core_->at(steady_clock::now() + hears_again_after, [weak = weak_from_this(), epoch] {
      if (auto self = weak.lock())
        self->hear(epoch);
    });
  std::shared_ptr<group_lane> over;
  {
    std::lock_guard guard{mutex_};
    if (epoch == epoch_)
      over = lane_;
  }
  if (over)
    over->over(
      news ? status{errc_from_wire(news->code), "{}", news->why} : explained(news.error()));
}

status group_membership::left() const {
  return {errc::cancelled, "this process left group {}", name_};
}

status group_membership::renewed() const {
  return {errc::cancelled, "group {} goes on in another epoch", name_};
}

// Without the node there is no group any more.
status group_membership::explained(const status& why) const {
  if (why.code() == errc::not_found || why.code() == errc::peer_lost)
    return {errc::unavailable, "group {}: {}", name_, why.detail()};
  return why.within("group " + name_);
}

std::shared_ptr<group_lane> group_membership::lane() const {
  std::lock_guard guard{mutex_};
  return lane_;
}

std::uint64_t group_membership::epoch() const {
  if (!core_->refusal().ok())
    return 0;
  std::lock_guard guard{mutex_};
  return epoch_;
}

std::vector<group_rank> group_membership::members() const {
  return core_->refusal().ok() ? lane()->who().members : std::vector<group_rank>{};
}

future<broadcast_receipt> group_membership::broadcast(
  const std::vector<tensor_view>& tensors, const broadcast_options& options) {
  using receipt = broadcast_receipt;
  if (auto refused = core_->refused<receipt>())
    return *refused;
  auto on = lane();
  auto root = on->who().place_of(options.root);
  if (!root)
    return ready_future<receipt>(fail(
      errc::invalid_argument, "rank {} is no member of epoch {} of group {}", options.root, epoch(),
      name_));
  auto how = *root == on->who().self ? access_mode::read : access_mode::write;
  auto bytes = transport::gather_list::of(tensors, how);
  if (!bytes)
    return ready_future<receipt>(fail(bytes.error().within("a broadcast of group " + name_)));
  if (!bytes->on_host())
    return ready_future<receipt>(fail(
      errc::unsupported, "group {} broadcasts memory of the host; copy the tensors there first",
      name_));
  return on->add(std::move(*bytes), *root, core_->deadline_after(options.timeout));
}

// Broadcasts that come meanwhile find that the epoch is over.
future<void> group_membership::renew(std::chrono::milliseconds timeout) {
  if (auto refused = core_->refused<void>())
    return *refused;
  actors::renew_group_request request;
  std::shared_ptr<group_lane> former;
  {
    std::lock_guard guard{mutex_};
    if (left_)
      return ready_future<void>(fail(left()));
    if (std::exchange(renewing_, true))
      return ready_future<void>(fail(errc::busy, "group {}: another call renews it", name_));
    former = lane_;
    request.lease = lease_;
    request.epoch = epoch_;
  }
  former->pause(renewed());
  request.patience_ms = core_->timeout_ms(timeout);
  request.timeout_ms = with_answer(request.patience_ms);
  auto done = core_->make_promise<void>();
  auto ended = [self = shared_from_this(), done](const result<void>& outcome) {
    {
      std::lock_guard guard{self->mutex_};
      self->renewing_ = false;
    }
    done.set(outcome);
  };
  ask(std::move(request))
    .chain([self = shared_from_this(), former, ended](const result<actors::group_epoch>& next) {
      if (!next) {
        former->resume();
        return ended(fail(self->explained(next.error())));
      }
      former->stop(self->renewed());
      self->enter(*next, ended);
    });
  return done.get_future();
}

// Returns after no thread touches tensors of the group any more.
future<void> group_membership::end(const status& why) {
  actors::leave_group_request request;
  std::shared_ptr<group_lane> last;
  {
    std::lock_guard guard{mutex_};
    left_ = true;
    request.lease = std::exchange(lease_, 0);
    last = lane_;
  }
  if (request.lease == 0)
    return ready_future<void>({});
  core_->forget_closing(closing_);
  if (last)
    last->stop(why);
  auto done = core_->make_promise<void>();
  request.timeout_ms = core_->timeout_ms();
  ask(std::move(request)).chain([done](const result<actors::done_reply>& left) {
    // One that the keeper does not know has left.
    auto is_gone = left || left.error().code() == errc::not_found;
    done.set(is_gone ? result<void>{} : fail(left.error()));
  });
  return done.get_future();
}

future<void> group_membership::leave() {
  if (auto refused = core_->refused<void>())
    return *refused;
  return end(left());
}

// In a forked child everything belongs to the parent.
void group_membership::close() {
  if (core_->refusal().ok())
    static_cast<void>(leave());
}

} // namespace millrace::runtime
