// Runs saves in order until the registration ends. Each save has two answers.
#include <millrace/actors/checkpoint/checkpoint_puller.hpp>
#include <millrace/actors/provider_actor.hpp>

#include <fmt/format.h>

#include <deque>
#include <optional>

namespace millrace::actors {

namespace {

using save_promise = caf::typed_response_promise<save_receipt>;

// Ended saves whose outcome is kept, since their `durable_request` may still be on its way.
constexpr std::size_t remembered_max = 16;

// A save, as it was asked for.
struct asked_save {
  save_request request;
  time_point deadline;
  time_point slot_deadline;                  // the end of the wait for a slot, once it runs
  std::shared_ptr<save_operation> operation; // null while it waits
  std::optional<save_promise> staged;        // until answered
  std::vector<save_promise> durable;
  std::optional<result<save_receipt>> outcome;
};
using asked_save_ptr = std::shared_ptr<asked_save>;

class checkpoint_puller : public provider_actor<checkpoint_puller_actor, puller_context> {
public:
  checkpoint_puller(caf::actor_config& config, checkpoint_puller_deps deps)
    : provider_actor(config, deps.provider, deps.fabric, deps.bounds, deps.staging),
      deps_(std::move(deps)) {
    context_->store = deps_.store;
    context_->snapshots = deps_.snapshots;
    context_->shard = std::move(deps_.shard);
    context_->owner = deps_.owner;
    context_->source = deps_.source;
    context_->busy = deps_.busy;
    context_->slot_wait_ms = deps_.slot_wait_ms;
    context_->published = std::move(deps_.published);
    context_->extra_bytes_max = deps_.extra_bytes_max;
  }

  const char* name() const override { return "checkpoint_puller"; }

  behavior_type make_behavior() override {
    using self = checkpoint_puller;
    return handlers(&self::save, &self::durable, &self::end);
  }

protected:
  void give_up_all(const status& why) override { leave({false, why}); }

  bool give_up_late(time_point now) override {
    if (auto running = queue_.empty() ? nullptr : queue_.front();
        running && running->operation && running->slot_deadline < now)
      running->operation->give_up_slot();
    give_up_if(late(deps_.provider, "finish"), [now](auto& asked) { return asked.deadline < now; });
    return !queue_.empty();
  }

private:
  caf::result<save_receipt> save(const save_request& request) {
    auto rp = make_response_promise<save_receipt>();
    auto asked = std::make_shared<asked_save>();
    asked->request = request;
    asked->deadline = deadline_of(request.timeout_ms, deps_.bounds, now());
    asked->staged = rp;
    if (auto bad = refusal(request); !bad.ok()) {
      finish(asked, fail(bad));
      return rp;
    }
    queue_.push_back(asked);
    count_queue();
    if (queue_.size() == 1)
      start(asked);
    watch();
    return rp;
  }

  status refusal(const save_request& request) const {
    auto name = fmt::format("{}, rank {}", context_->shard.model, context_->shard.rank);
    if (left_)
      return {errc::not_found, "the registration of {} has ended; register again", name};
    if (auto bytes = size_bytes(request.extra); bytes > deps_.extra_bytes_max)
      return {
        errc::invalid_argument,
        "step {} of {} has {} bytes of the user; provider {} keeps {} (checkpoints.extra_max)",
        request.step,
        name,
        bytes,
        deps_.provider,
        deps_.extra_bytes_max};
    if (queue_.empty())
      return {};
    auto running = fmt::format("{}: step {} is being saved", name, queue_.front()->request.step);
    if (context_->busy == when_saving::refuse)
      return {errc::busy, running};
    if (queue_.size() > deps_.queued_max)
      return {
        errc::busy, "{} and {} saves wait (checkpoints.saves_queued_max)", running,
        deps_.queued_max};
    return {};
  }

  void start(const asked_save_ptr& asked) {
    save_operation::events events;
    events.staged = [asked](const save_receipt& receipt) {
      if (auto rp = std::exchange(asked->staged, std::nullopt))
        rp->deliver(receipt);
    };
    events.ended = [this, asked](result<save_receipt> outcome) {
      finish(asked, std::move(outcome));
    };
    asked->slot_deadline = now() + std::chrono::milliseconds{deps_.slot_wait_ms};
    asked->operation = save_operation::make(context_, asked->request, std::move(events));
    try {
      asked->operation->begin();
    } catch (const std::exception& e) {
      asked->operation->give_up({errc::no_space, "provider {}: {}", deps_.provider, e.what()});
    }
  }

  // Answers the questions about the save, and keeps its outcome for a later one.
  void finish(const asked_save_ptr& asked, result<save_receipt> outcome) {
    ++(outcome ? deps_.counters->saves : deps_.counters->failed);
    if (outcome)
      deps_.counters->saved_bytes += outcome->size_bytes;
    if (outcome && deps_.saved)
      deps_.saved(*outcome);
    if (auto rp = std::exchange(asked->staged, std::nullopt))
      answer_with(*rp, outcome);
    answer_durable(*asked, outcome);
    asked->outcome = std::move(outcome);
    ended_.push_back(asked);
    if (ended_.size() > remembered_max)
      ended_.pop_front();
    bool was_running = !queue_.empty() && queue_.front() == asked;
    std::erase(queue_, asked);
    count_queue();
    // Not called from here: the caller may be walking the queue, and the save itself must return
    // first.
    if (was_running && !queue_.empty())
      send(this, own_work{[this] { start_next(); }});
  }

  static void answer_durable(asked_save& asked, const result<save_receipt>& outcome) {
    for (auto& rp : std::exchange(asked.durable, {}))
      answer_with(rp, outcome);
  }

  void start_next() {
    if (!queue_.empty() && !queue_.front()->operation)
      start(queue_.front());
  }

  caf::result<save_receipt> durable(const durable_request& request) {
    auto is_it = [&](auto& asked) { return asked->request.step == request.step; };
    auto rp = make_response_promise<save_receipt>();
    if (is_planted(defect::durable_never_answered) && request.step % 16 == 0)
      return rp;
    if (auto found = std::find_if(queue_.rbegin(), queue_.rend(), is_it); found != queue_.rend()) {
      auto& asked = **found;
      if (is_planted(defect::durable_before_published))
        rp.deliver(receipt_before(request.step));
      else
        asked.durable.push_back(rp);
      asked.deadline =
        std::max(asked.deadline, deadline_of(request.timeout_ms, deps_.bounds, now()));
    } else if (auto old = std::find_if(ended_.rbegin(), ended_.rend(), is_it);
               old != ended_.rend()) {
      answer_with(rp, *(*old)->outcome);
    } else {
      rp.deliver(
        caf::make_error(errc::not_found, fmt::format("step {} is not being saved", request.step)));
    }
    return rp;
  }

  // What a planted defect answers while the bytes are on their way.
  save_receipt receipt_before(std::uint64_t step) const {
    auto& shard = context_->shard;
    save_receipt r;
    r.model = shard.model;
    r.rank = shard.rank;
    r.step = step;
    r.size_bytes = size_bytes(shard.tensors);
    r.provider = deps_.provider;
    r.durable = true;
    return r;
  }

  caf::result<done_reply> end(const end_registration& request) {
    leave(request);
    quit();
    return done_reply{};
  }

  // Ends the saves first, so that their slots are free when the store is told.
  void leave(const end_registration& request) {
    if (std::exchange(left_, true))
      return;
    give_up_if(request.why, [](auto&) { return true; });
    deps_.store->leave(context_->shard.model, context_->shard.rank, request.finished);
    deps_.left({});
  }

  template <class Condition>
  void give_up_if(const status& why, Condition holds) {
    for (auto& asked : std::deque{queue_}) {
      if (!holds(*asked))
        continue;
      if (asked->operation)
        asked->operation->give_up(why);
      else
        finish(asked, fail(why));
    }
  }

  // Updates the provider's sums from this queue.
  void count_queue() {
    auto running = std::uint64_t{queue_.empty() ? 0u : 1u};
    auto waiting = queue_.size() - running;
    deps_.counters->in_flight += running - counted_running_;
    deps_.counters->queued += waiting - counted_waiting_;
    counted_running_ = running;
    counted_waiting_ = waiting;
  }

  checkpoint_puller_deps deps_;
  std::deque<asked_save_ptr> queue_; // the first one is running
  std::deque<asked_save_ptr> ended_;
  std::uint64_t counted_running_ = 0;
  std::uint64_t counted_waiting_ = 0;
  bool left_ = false;
};

} // namespace

checkpoint_puller_actor spawn_checkpoint_puller(
  caf::actor_system& system, checkpoint_puller_deps deps) {
  return system.spawn<checkpoint_puller>(std::move(deps));
}

} // namespace millrace::actors
