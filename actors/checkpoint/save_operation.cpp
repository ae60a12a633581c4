// The steps of a save. Kill points name the places that crash tests choose.
#include <millrace/actors/checkpoint/save_operation.hpp>
#include <millrace/core/kill_point.hpp>
#include <millrace/core/log.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace millrace::actors {

namespace {

using storage::pending_version;

// Fills straight to the slot. Once the peer may not reach the slot, this and later fills go through
// staging memory.
window_filler fill_where_possible(
  std::shared_ptr<puller_context> context, std::shared_ptr<pull_work> work,
  std::function<void()> on_staging) {
  auto staged =
    context->snapshots.lender ? fill_through_staging(work, context->snapshots) : nullptr;
  return [context, direct = fill_directly(work), staged,
          on_staging](storage::window w, auto arrived, auto done) {
    if (staged && !context->direct) {
      on_staging();
      return staged(std::move(w), std::move(arrived), std::move(done));
    }
    auto copy = w;
    direct(
      std::move(copy), arrived,
      [context, staged, on_staging, w = std::move(w), arrived,
       done](result<filled_window> filled) mutable {
        if (filled || filled.error().code() != errc::unsupported || !staged)
          return done(std::move(filled));
        if (std::exchange(context->direct, false))
          log().info(
            "saves go through staging memory model={} rank={} why=\"{}\"", context->shard.model,
            context->shard.rank, filled.error().to_string());
        on_staging();
        staged(std::move(w), std::move(arrived), std::move(done));
      });
  };
}

class save_operation_impl : public save_operation,
                            public std::enable_shared_from_this<save_operation_impl> {
public:
  save_operation_impl(
    std::shared_ptr<puller_context> context, const save_request& request, events events)
    : context_(std::move(context)), snapshot_(request.snapshot), run_min_(request.run_min),
      went_back_(request.went_back && request.run_min == 0), extra_(request.extra),
      events_(std::move(events)), created_(steady_clock::now()) {
    receipt_.model = context_->shard.model;
    receipt_.rank = context_->shard.rank;
    receipt_.step = request.step;
    receipt_.provider = context_->provider;
    // If slots are not mapped, windows are staging memory anyway.
    in_place_ = context_->store->capabilities().in_place;
    receipt_.path = in_place_ ? "direct" : "staged";
  }

  void begin() override {
    begun_ = steady_clock::now();
    receipt_.times.queued_us = us_between(created_, begun_);
    ask_for_slot();
  }

  void give_up(const status& why) override {
    if (ended())
      return;
    auto waited = busy_.ok() ? why : status{why.code(), "{}; {}", why.detail(), busy_.detail()};
    end(fail(waited.within(name())));
  }

  void give_up_slot() override {
    if (!busy_.ok())
      give_up(
        {errc::busy, "there was no slot for {} ms (checkpoints.slot_wait)",
         context_->slot_wait_ms});
  }

private:
  bool ended() const { return !events_.ended; }

  std::string name() const {
    return fmt::format(
      "saving step {} of {}, rank {}", receipt_.step, receipt_.model, receipt_.rank);
  }

  void ask_for_slot() {
    busy_ = {};
    freed_ = false;
    auto freed = context_->home<void>([self = weak_from_this()](const auto&) {
      if (auto alive = self.lock())
        alive->on_freed();
    });
    context_->store->begin(
      {receipt_.model, receipt_.rank, receipt_.step, run_min_, went_back_, size_bytes(extra_)},
      [freed = std::move(freed)] { freed({}); },
      context_->home<std::unique_ptr<pending_version>>(
        [self = shared_from_this()](auto slot) { self->on_slot(std::move(slot)); }));
  }

  // No slot can be filled. A save asks again when one may be free, and this may become known before
  // the save learns that the slots are busy.
  void wait_for_slot(const status& busy) {
    busy_ = busy;
    if (waits_since_ == time_point{})
      waits_since_ = steady_clock::now();
    if (freed_)
      ask_for_slot();
  }

  void on_freed() {
    freed_ = true;
    if (!ended() && !busy_.ok())
      ask_for_slot();
  }

  void on_slot(result<std::unique_ptr<pending_version>> slot) {
    if (ended())
      return;
    if (!slot && slot.error().code() == errc::busy && context_->busy == when_saving::wait)
      return wait_for_slot(slot.error());
    if (!slot)
      return give_up(slot.error());
    MILLRACE_KILL_POINT("save.begun");
    pull_at_ = steady_clock::now();
    receipt_.times.begin_us = us_between(begun_, pull_at_);
    if (waits_since_ != time_point{})
      receipt_.times.slot_us = us_between(waits_since_, pull_at_);
    slot_ = std::move(*slot);
    receipt_.run = slot_->run();
    auto self = shared_from_this();
    prepare(*work_, context_->source, context_->shard.tensors);
    work_->write_back = context_->store->capabilities().cpu_flush;
    receipt_.size_bytes = work_->offsets.size_bytes();
    window_pull::events events;
    events.arrived = [self] { self->on_arrived(); };
    events.done = [self](result<filled_window> filled) { self->on_filled(std::move(filled)); };
    pull_ = std::make_shared<window_pull>(work_, *slot_, filler(), std::move(events));
    extra_pull_ = make_extra_pull();
    pull_->start();
    // The save may have failed by now.
    if (extra_pull_)
      extra_pull_->start();
  }

  void prepare(pull_work& work, const bulk_handle& source, const layout& tensors) {
    work.context = context_;
    // The save ends earlier, unless requests for its outcome extend its time.
    work.claim = {
      context_->owner.holder, staging_use::save,
      created_ + std::chrono::milliseconds{context_->bounds.request_timeout_max_ms}};
    work.source = source;
    work.channel = context_->owner.connection;
    work.offsets = layout_offsets{tensors};
  }

  // The client has a copy of the user's bytes, so that they may arrive later than the tensors.
  std::shared_ptr<window_pull> make_extra_pull() {
    auto* room = slot_->extra();
    if (!room)
      return nullptr;
    auto self = shared_from_this();
    prepare(*extra_work_, extra_, {{extra_tensor(size_bytes(extra_))}});
    window_pull::events events;
    events.done = [self](const result<filled_window>& filled) { self->on_extra_filled(filled); };
    return std::make_shared<window_pull>(
      extra_work_, *room, fill_where_possible(context_, extra_work_, [] {}), std::move(events));
  }

  void on_extra_filled(const result<filled_window>& filled) {
    if (ended())
      return;
    if (!filled)
      return give_up(filled.error().within("the user's bytes"));
    extra_pull_ = nullptr;
    publish_if_filled();
  }

  window_filler filler() {
    auto self = shared_from_this();
    auto on_staging = [self] { self->receipt_.path = "staged"; };
    if (!snapshot_ || !in_place_ || !context_->snapshots.lender)
      return fill_where_possible(context_, work_, on_staging);
    on_staging();
    return fill_through_staging(work_, context_->snapshots);
  }

  void on_arrived() {
    if (ended())
      return;
    receipt_.times.pull_us = us_between(pull_at_, steady_clock::now());
    events_.staged(receipt_);
  }

  void on_filled(result<filled_window> filled) {
    if (ended())
      return;
    if (!filled)
      return give_up(filled.error());
    MILLRACE_KILL_POINT("save.filled");
    receipt_.driver = std::move(filled->driver);
    filled_at_ = steady_clock::now();
    receipt_.times.pull_us = us_between(pull_at_, filled_at_);
    if (work_->write_back && filled->written_back)
      slot_->written_back();
    pull_ = nullptr;
    publish_if_filled();
  }

  void publish_if_filled() {
    if (pull_ || extra_pull_)
      return;
    std::ranges::copy(extra_work_->digests, std::back_inserter(work_->digests));
    slot_->publish(
      std::move(work_->digests),
      context_->home<std::uint64_t>(
        [self = shared_from_this()](const result<std::uint64_t>& r) { self->on_published(r); }));
  }

  void on_published(const result<std::uint64_t>& step) {
    // A save that was given up meanwhile does not know whether it was the last of its step.
    if (step && context_->published && (ended() || slot_->complete()))
      context_->published(*step);
    if (ended())
      return;
    if (!step)
      return give_up(step.error());
    MILLRACE_KILL_POINT("save.published");
    receipt_.times.persist_us = us_between(filled_at_, steady_clock::now());
    receipt_.durable = context_->store->capabilities().durable;
    receipt_.complete = slot_->complete();
    end(std::move(receipt_));
  }

  void end(result<save_receipt> outcome) {
    auto ended = std::exchange(events_, {}).ended;
    for (auto* pull : {&pull_, &extra_pull_})
      if (*pull)
        std::exchange(*pull, nullptr)->stop();
    slot_.reset();
    ended(std::move(outcome));
  }

  std::shared_ptr<puller_context> context_;
  const bool snapshot_;
  const std::uint64_t run_min_;
  const bool went_back_; // says an older build
  const bulk_handle extra_;
  bool in_place_ = true;
  events events_;
  save_receipt receipt_;
  time_point created_, begun_, waits_since_, pull_at_, filled_at_;
  status busy_; // the error while it waits for a slot
  bool freed_ = false;
  std::shared_ptr<pull_work> work_ = std::make_shared<pull_work>();
  std::shared_ptr<pull_work> extra_work_ = std::make_shared<pull_work>();
  std::unique_ptr<pending_version> slot_;
  std::shared_ptr<window_pull> pull_, extra_pull_; // until they are over
};

} // namespace

std::shared_ptr<save_operation> save_operation::make(
  std::shared_ptr<puller_context> context, const save_request& request, events events) {
  return std::make_shared<save_operation_impl>(std::move(context), request, std::move(events));
}

} // namespace millrace::actors
