// Registers, saves, and reports each failure once. Messages leave on the I/O loop, so that `save`
// costs the trainer little.
#include <millrace/core/kill_point.hpp>
#include <millrace/core/log.hpp>
#include <millrace/runtime/client/calls/checkpoint_call.hpp>
#include <millrace/runtime/client/calls/load_call.hpp>
#include <millrace/runtime/client/calls/shard_state.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace millrace::runtime {

using actors::checkpoint_service;

namespace {

// Registering waits this much longer than the service needs to notice that an earlier job's host is
// gone.
constexpr std::chrono::seconds former_job_grace{2};
// The first and the longest pause between two attempts.
constexpr std::uint32_t try_again_ms_min = 50;
constexpr std::uint32_t try_again_ms_max = 1000;
// Waits here outlast the deadlines of the requests by this much.
constexpr std::chrono::seconds grace{5};

// Returns true if the registration behind a request is gone; the process may still run.
bool ends_registration(errc code) {
  return code == errc::peer_lost || code == errc::unavailable || code == errc::not_found;
}

// Returns true for an error that this side may have detected by itself: the service may still be
// reading the tensors.
bool may_still_run(errc code) {
  return code == errc::deadline_exceeded || code == errc::peer_lost || code == errc::unavailable ||
    code == errc::protocol_error || code == errc::internal;
}

status closed_error() { return {errc::unavailable, "the checkpointer is closed"}; }

} // namespace

shard_state::shard_state(std::shared_ptr<client_core> core, const checkpoint_options& options)
  : core_(std::move(core)), options_(options) {}

result<std::shared_ptr<shard_state>> shard_state::make(
  std::shared_ptr<client_core> core, const checkpoint_options& options,
  std::vector<tensor_view> tensors) {
  std::shared_ptr<shard_state> s{new shard_state{std::move(core), options}};
  auto& shard = s->shard_;
  shard.model = options.model;
  shard.rank = options.rank;
  shard.world_size = options.world_size;
  shard.keep = options.keep;
  shard.axes = options.axes;
  shard.metadata = options.metadata;
  shard.life = options.life;
  if (shard.life == 0)
    random_bytes(&shard.life, sizeof(shard.life));
  for (auto& t : tensors)
    shard.tensors.tensors.push_back(t.desc);
  if (auto bad = validate(shard); !bad.ok())
    return fail(bad);
  s->tensors_ = std::move(tensors);
  // Memory is exposed only when it is needed, but views that cannot be exposed are refused now.
  if (auto list = transport::gather_list::of(s->tensors_, access_mode::read); !list)
    return fail(list.error().within("checkpoints of " + options.model));
  return s;
}

std::uint32_t shard_state::timeout_ms() const { return core_->timeout_ms(options_.timeout); }

std::chrono::milliseconds shard_state::patience() const {
  return std::chrono::milliseconds{timeout_ms()} + grace;
}

void shard_state::attach(completion<void> done) {
  find_keeper(
    core_, options_.group, options_.model, std::nullopt, core_->deadline_after(options_.timeout),
    [self = shared_from_this(), done = std::move(done)](const result<std::size_t>& provider) {
      if (!provider)
        return done(fail(provider.error().within("registering " + self->options_.model)));
      self->provider_ = *provider;
      self->enroll_patiently(nullptr, [done](const result<std::uint64_t>& r) {
        done(r ? result<void>{} : fail(r.error()));
      });
    });
}

// The service may not have noticed yet that the job before this one, or its connection, is gone.
void shard_state::enroll_patiently(const save_record_ptr& wants, completion<std::uint64_t> done) {
  auto missed_within =
    std::chrono::milliseconds{core_->runs_on()->channel_options().peer_timeout_ms};
  auto wait = std::min<std::chrono::milliseconds>(
    missed_within + former_job_grace, std::chrono::milliseconds{timeout_ms()});
  enroll_until(wants, steady_clock::now() + wait, wait, try_again_ms_min, std::move(done));
}

void shard_state::enroll_until(
  const save_record_ptr& wants, time_point until, std::chrono::milliseconds wait,
  std::uint32_t pause_ms, completion<std::uint64_t> done) {
  enroll(
    wants,
    [self = shared_from_this(), wants, until, wait, pause_ms,
     done = std::move(done)](result<std::uint64_t> r) {
      if (r || r.error().code() != errc::busy)
        return done(std::move(r));
      if (steady_clock::now() > until)
        return done(fail(
          errc::busy, "{}; waited {} ms for a former job to be missed (channel.peer_timeout)",
          r.error().detail(), wait.count()));
      self->core_->runs_on()->loop()->run_after(
        pause_ms, [self, wants, until, wait, pause_ms, done] {
          self->enroll_until(wants, until, wait, std::min(2 * pause_ms, try_again_ms_max), done);
        });
    });
}

// Runs one request at a time; callers that come meanwhile share its outcome. `wants`: the save that
// needs a registration, if it is one; once it is over it must not expose the tensors again.
void shard_state::enroll(const save_record_ptr& wants, completion<std::uint64_t> done) {
  std::unique_lock guard{mutex_};
  if (wants && wants->over) {
    guard.unlock();
    return done(fail(errc::cancelled, "the save is over"));
  }
  if (left_ || registration_ != 0) {
    auto outcome =
      left_ ? fail(closed_error()) : result<std::uint64_t>{std::uint64_t{registration_}};
    guard.unlock();
    return done(std::move(outcome));
  }
  enrolling_.push_back({wants, std::move(done)});
  if (std::exchange(enroll_asked_, true))
    return;
  guard.unlock();
  ask_to_enroll();
}

void shard_state::ask_to_enroll() {
  actors::enroll_request request;
  std::vector<waiting> refused;
  bool wanted;
  {
    std::lock_guard guard{mutex_};
    // All who waited may have given up since, and after `close` nothing is exposed again.
    wanted = !left_ && !enrolling_.empty();
    if (!wanted) {
      enroll_asked_ = false;
      refused.swap(enrolling_);
    } else {
      if (!region_) {
        auto list = transport::gather_list::of(tensors_, access_mode::read);
        region_ = transport::expose(std::move(*list), access_mode::read);
        ++exposure_;
      }
      request.source = region_.handle();
    }
  }
  for (auto& w : refused)
    w.done(fail(closed_error()));
  if (!wanted)
    return;
  request.shard = shard_;
  request.busy = options_.busy;
  request.timeout_ms = timeout_ms();
  core_->ask<checkpoint_service>(
    provider_, std::move(request), [self = shared_from_this()](result<actors::enroll_receipt> r) {
      self->on_enrolled(std::move(r));
    });
}

void shard_state::on_enrolled(result<actors::enroll_receipt> r) {
  std::vector<waiting> answered;
  auto outcome = r.map([](auto& receipt) { return receipt.registration; });
  std::uint64_t unwanted = 0;
  bool again = false;
  {
    std::lock_guard guard{mutex_};
    // The registration was abandoned and its memory withdrawn while the request ran. Callers that
    // came since then need a new one.
    if (!region_) {
      unwanted = outcome.value_or(0);
      again = !left_ && !enrolling_.empty();
      outcome = fail(closed_error());
    } else if (r) {
      registration_ = r->registration;
      run_ = std::max(run_, r->run);
      if (receipt_.registration == 0)
        receipt_ = std::move(*r);
    }
    enroll_asked_ = again;
    if (!again)
      answered.swap(enrolling_);
  }
  if (unwanted != 0)
    ask_to_leave(unwanted, false, [](const result<void>&) {});
  if (again)
    ask_to_enroll();
  for (auto& w : answered)
    w.done(outcome);
}

void shard_state::forget_registration(std::uint64_t registration) {
  std::lock_guard guard{mutex_};
  if (registration_ == registration)
    registration_ = 0;
}

// The service must not read the tensors any more.
void shard_state::withdraw() {
  transport::region withdrawn;
  {
    std::lock_guard guard{mutex_};
    std::swap(withdrawn, region_);
  }
  withdrawn.withdraw();
  give_up_waiting();
}

// Ends the wait of saves that are over but still wait to be registered. The others get a new
// registration if the memory was withdrawn, see `on_enrolled`.
void shard_state::give_up_waiting() {
  std::vector<waiting> given_up;
  status why{errc::cancelled, "the save is over"};
  {
    std::lock_guard guard{mutex_};
    if (left_)
      why = closed_error();
    auto first = std::stable_partition(enrolling_.begin(), enrolling_.end(), [this](auto& w) {
      return !left_ && !(w.wants && w.wants->over);
    });
    given_up.assign(std::move_iterator{first}, std::move_iterator{enrolling_.end()});
    enrolling_.erase(first, enrolling_.end());
  }
  for (auto& w : given_up)
    w.done(fail(why));
}

// Withdraws the memory and ends the registration, even one whose request is still on its way.
void shard_state::abandon() {
  withdraw();
  leave(false, [](const result<void>&) {});
}

void shard_state::leave(bool finished, completion<void> done) {
  std::uint64_t number;
  {
    std::lock_guard guard{mutex_};
    number = std::exchange(registration_, 0);
  }
  if (number == 0)
    return done({});
  ask_to_leave(number, finished, std::move(done));
}

void shard_state::ask_to_leave(std::uint64_t registration, bool finished, completion<void> done) {
  core_->ask<checkpoint_service>(
    provider_, actors::leave_request{registration, finished},
    [done = std::move(done)](result<actors::done_reply> r) {
      // A registration that is already gone counts as ended.
      if (r || ends_registration(r.error().code()))
        done({});
      else
        done(fail(r.error()));
    });
}

pending_save shard_state::failed_save(const save_record& record, const status& why) const {
  auto named = why.within(fmt::format("step {} was not saved", record.step));
  return {
    record.step, ready_future<save_receipt>(fail(named)), ready_future<save_receipt>(fail(named))};
}

pending_save shard_state::save(std::uint64_t step, save_mode mode) {
  auto record = std::make_shared<save_record>();
  record->step = step;
  record->mode = mode;
  {
    std::lock_guard guard{mutex_};
    if (closed_)
      return failed_save(*record, closed_error());
    not_begun_ = std::exchange(failed_, std::nullopt);
    if (not_begun_)
      return failed_save(*record, *not_begun_);
    record->staged = core_->make_promise<save_receipt>();
    record->durable = core_->make_promise<save_receipt>();
    record->run_min = run_min_;
    record->went_back = std::exchange(went_back_, false);
    has_saved_ = true;
    saves_.push_back(record);
  }
  auto undo = [weak = weak_from_this(), of = std::weak_ptr{record}] {
    auto self = weak.lock();
    auto cancelled = of.lock();
    if (self && cancelled)
      self->cancel(cancelled);
  };
  // The caller does not have the futures yet, so it cannot have cancelled.
  static_cast<void>(record->staged.on_cancel(undo));
  static_cast<void>(record->durable.on_cancel(undo));
  send_soon();
  return {step, record->staged.get_future(), record->durable.get_future()};
}

// After this, nothing begins to read the tensors for this save, also if it has not been sent yet.
// The service cannot be told to end one save alone, see `ending`.
void shard_state::cancel(const save_record_ptr& record) {
  if (record->staged.get_future().ready())
    return;
  status why{errc::cancelled, "cancelled by the caller"};
  transport::region withdrawn;
  std::shared_ptr<ending> own, ends;
  {
    std::lock_guard guard{mutex_};
    if (std::exchange(record->over, true))
      return;
    own = std::move(record->ends);
    std::erase(saves_, record);
    if (!failed_)
      failed_ = why;
    std::swap(withdrawn, region_);
    if (auto number = std::exchange(registration_, 0); number != 0)
      ends = {new ending{number, {}}, [self = shared_from_this()](ending* e) {
                self->end(*std::unique_ptr<ending>{e});
              }};
    for (auto& other : saves_)
      if (ends && other->sent.registration == ends->registration)
        other->ends = ends;
  }
  withdrawn.withdraw();
  give_up_waiting();
  ends = own = nullptr; // before the next save registers
  send_soon();
  record->staged.set(fail(why));
  record->durable.set(fail(why));
}

void shard_state::end(const ending& what) {
  ask_to_leave(what.registration, false, [](const result<void>&) {});
  for (auto& record : what.unread)
    send(record);
}

void shard_state::send(const save_record_ptr& record) {
  {
    std::lock_guard guard{mutex_};
    record->ready = true;
  }
  send_soon();
}

void shard_state::send_soon() {
  core_->runs_on()->loop()->post([self = shared_from_this()] { self->send_ready(); });
}

// Called with `mutex_` held.
bool shard_state::in_place(const save_record& record) const {
  return record.sent.registration != 0 && record.sent.registration == registration_;
}

// A provider takes the steps of a shard in their order: a save waits until those before it are over
// or in place. Called on the loop alone, so that no two threads change that order.
void shard_state::send_ready() {
  while (true) {
    save_record_ptr next;
    sending now;
    {
      std::lock_guard guard{mutex_};
      auto first =
        std::ranges::find_if_not(saves_, [this](auto& record) { return in_place(*record); });
      if (registering_ || first == saves_.end())
        return;
      next = *first;
      if (!next->ready || next->sent.registration != 0)
        return;
      registering_ = registration_ == 0;
      if (!registering_)
        now = next->sent = {registration_, exposure_, next->sent.attempt + 1};
    }
    if (now.registration == 0)
      return enroll_patiently(next, [self = shared_from_this(), next](const auto& r) {
        self->on_registered(next, r ? status{} : r.error());
      });
    ask_to_save(next, now);
  }
}

// Where the shard cannot be registered, no save that waits for it begins.
void shard_state::on_registered(const save_record_ptr& wanted_by, const status& why) {
  std::vector<save_record_ptr> failed;
  {
    std::lock_guard guard{mutex_};
    if (!why.ok() && !wanted_by->over)
      std::ranges::copy_if(saves_, std::back_inserter(failed), [](auto& record) {
        return record->ready && record->sent.registration == 0;
      });
  }
  for (auto& record : failed)
    fail_save(record, {}, why.within("registering again"));
  {
    std::lock_guard guard{mutex_};
    registering_ = false;
  }
  send_soon();
}

void shard_state::ask_to_save(const save_record_ptr& record, const sending& now) {
  auto self = shared_from_this();
  actors::save_request request;
  request.registration = now.registration;
  request.step = record->step;
  request.snapshot = record->mode == save_mode::snapshot;
  request.timeout_ms = timeout_ms();
  request.run_min = record->run_min;
  request.went_back = record->went_back;
  core_->ask<checkpoint_service>(provider_, request, [self, record, now](result<save_receipt> r) {
    self->on_staged(record, now, self->check_saved(*record, std::move(r)));
  });
  core_->ask<checkpoint_service>(
    provider_, actors::durable_request{now.registration, record->step, request.timeout_ms},
    [self, record, now](result<save_receipt> r) {
      self->on_durable(record, now, self->check_saved(*record, std::move(r)));
    });
  MILLRACE_KILL_POINT("checkpointer.save_sent");
}

result<save_receipt> shard_state::check_saved(const save_record& record, result<save_receipt> r) {
  auto checked =
    check_receipt(std::move(r), {shard_.model, record.step, size_bytes(shard_.tensors)});
  if (checked && checked->rank != shard_.rank)
    return fail(
      errc::protocol_error, "provider {} answered about rank {}", checked->provider, checked->rank);
  if (checked) {
    std::lock_guard guard{mutex_};
    run_ = std::max(run_, checked->run);
  }
  return checked;
}

void shard_state::on_staged(
  const save_record_ptr& record, const sending& then, result<save_receipt> r) {
  {
    std::lock_guard guard{mutex_};
    if (record->over || record->sent != then)
      return;
  }
  if (r)
    return static_cast<void>(record->staged.set(std::move(r)));
  if (!begins_anew(record, then, r.error()))
    fail_save(record, then, r.error());
}

// A service that does not know the registration has not begun the save, and one that could not read
// the tensors has not ended it. So it is asked once more. One that is out of reach may have ended
// it, and would take the same step for that of a job that went back.
bool shard_state::begins_anew(
  const save_record_ptr& record, const sending& then, const status& why) {
  std::shared_ptr<ending> ends;
  {
    std::lock_guard guard{mutex_};
    if (record->sent != then)
      return true;
    auto unread = record->ends && !may_still_run(why.code());
    auto unknown = why.code() == errc::not_found && then.attempt == 1;
    if (!unread && !unknown)
      return false;
    record->sent.registration = 0;
    record->ready = false;
    ends = std::move(record->ends);
    if (ends)
      ends->unread.push_back(record);
  }
  if (ends)
    return true;
  forget_registration(then.registration);
  send(record);
  return true;
}

void shard_state::on_durable(
  const save_record_ptr& record, const sending& then, result<save_receipt> r) {
  std::shared_ptr<ending> ends;
  bool others_wait;
  {
    std::lock_guard guard{mutex_};
    if (record->over || record->sent != then)
      return;
    record->over = r.has_value();
    if (r) {
      std::erase(saves_, record);
      ends = std::move(record->ends);
    }
    others_wait = !saves_.empty() && !in_place(*saves_.back());
  }
  if (!r)
    return fail_save(record, then, r.error());
  ends = nullptr; // before the next save registers
  if (others_wait)
    send_soon();
  record->staged.set(*r);
  record->durable.set(std::move(r));
}

void shard_state::fail_save(const save_record_ptr& record, const sending& then, const status& why) {
  // True if the service that was asked to save can still reach the memory.
  bool in_reach;
  {
    std::shared_ptr<ending> ends;
    std::lock_guard guard{mutex_};
    if (std::exchange(record->over, true))
      return;
    ends = std::move(record->ends);
    std::erase(saves_, record);
    if (!failed_)
      failed_ = why;
    in_reach = region_ && record->sent.exposure == exposure_;
  }
  if (then.registration != 0 && ends_registration(why.code()))
    forget_registration(then.registration);
  // Once the trainer gets this failure it changes its tensors, so the service must not read them
  // any more. Memory that was registered but cannot be read is registered again.
  bool reading = !record->staged.get_future().ready() && may_still_run(why.code());
  if (in_reach && (reading || why.code() == errc::permission_denied))
    abandon();
  send_soon();
  record->staged.set(fail(why));
  record->durable.set(fail(why));
}

std::vector<shard_state::save_record_ptr> shard_state::under_way() const {
  std::lock_guard guard{mutex_};
  return {saves_.begin(), saves_.end()};
}

status shard_state::take_failure() {
  std::lock_guard guard{mutex_};
  auto failed = std::exchange(failed_, std::nullopt);
  auto not_begun = std::exchange(not_begun_, std::nullopt);
  return failed ? *failed : not_begun.value_or(status{});
}

status shard_state::fence() {
  for (auto& record : under_way())
    if (!record->staged.get_future().wait_for(patience()))
      return {
        errc::deadline_exceeded, "step {} of {} is still being read", record->step, options_.model};
  return take_failure();
}

// The staged future of a save ends by the save's deadline.
future<void> shard_state::fence_async() {
  std::vector<future<save_receipt>> reading;
  for (auto& record : under_way())
    if (auto staged = record->staged.get_future(); !staged.ready())
      reading.push_back(std::move(staged));
  auto done = core_->make_promise<void>();
  when_all(reading).then([self = shared_from_this(), done](const auto&) {
    auto failure = self->take_failure();
    done.set(failure.ok() ? result<void>{} : fail(std::move(failure)));
  });
  return done.get_future();
}

future<void> shard_state::close_async(bool finished) {
  {
    std::lock_guard guard{mutex_};
    if (std::exchange(closed_, true))
      return ready_future<void>({});
  }
  std::vector<future<save_receipt>> saving;
  for (auto& record : under_way())
    saving.push_back(record->durable.get_future());
  auto done = core_->make_promise<void>();
  when_all(saving).then([self = shared_from_this(), done, finished](const auto&) {
    self->stop_registering();
    self->leave(finished, [self, done](const result<void>& gone) {
      self->withdraw();
      auto failure = self->take_failure();
      if (failure.ok() && !gone)
        failure = gone.error().within("ending the registration of " + self->options_.model);
      done.set(failure.ok() ? result<void>{} : fail(std::move(failure)));
    });
  });
  return done.get_future();
}

void shard_state::stop_registering() {
  std::lock_guard guard{mutex_};
  left_ = true;
}

status shard_state::close(bool finished) {
  {
    std::lock_guard guard{mutex_};
    if (std::exchange(closed_, true))
      return {};
  }
  status late;
  for (auto& record : under_way())
    if (!record->durable.get_future().wait_for(patience()))
      late = {
        errc::deadline_exceeded, "step {} of {} was not finished", record->step, options_.model};
  stop_registering();
  auto left = core_->make_promise<void>();
  leave(finished, [left](result<void> r) { left.set(std::move(r)); });
  auto gone = left.get_future();
  auto in_time = gone.wait_for(patience());
  withdraw();
  auto failure = take_failure();
  if (failure.ok())
    failure = late;
  if (failure.ok() && in_time && !gone.result())
    failure = gone.result().error().within("ending the registration of " + options_.model);
  return failure;
}

void shard_state::drop() {
  {
    std::lock_guard guard{mutex_};
    if (closed_)
      return;
  }
  auto& engine = *core_->runs_on();
  bool must_not_wait = engine.loop()->on_loop() || actors::handler_scope::inside() ||
    actors::inline_unit::current(engine.system());
  if (must_not_wait) {
    stop_registering();
    return abandon();
  }
  if (auto failed = close(false); !failed.ok())
    log().error(
      "a checkpoint was lost model={} rank={} why=\"{}\"", options_.model, options_.rank,
      failed.to_string());
}

future<actors::load_receipt> shard_state::restore(std::optional<std::uint64_t> step) {
  for (auto& record : under_way())
    if (!record->staged.get_future().ready())
      return ready_future<actors::load_receipt>(fail(
        errc::busy, "step {} of {} is still being read from these tensors; call fence() first",
        record->step, options_.model));
  {
    // Saves after a restore do not belong to the run of the earlier saves. All of them say so,
    // since none is known to have begun before its answer comes.
    std::lock_guard guard{mutex_};
    if (std::exchange(has_saved_, false)) {
      run_min_ = run_ + 1;
      went_back_ = true;
    }
  }
  return restore_shard(options_.rank, tensors_, step);
}

future<actors::load_receipt> shard_state::restore_shard(
  std::uint32_t rank, std::vector<tensor_view> targets, std::optional<std::uint64_t> step) {
  auto call = load_call::make(core_);
  restore_into(
    call, core_, provider_, options_.model, rank, step, std::move(targets),
    core_->deadline_after(options_.timeout));
  return call->outcome();
}

future<checkpoint_summary> shard_state::describe() const {
  return describe_checkpoints(
    core_, provider_, options_.model, core_->deadline_after(options_.timeout));
}

} // namespace millrace::runtime
