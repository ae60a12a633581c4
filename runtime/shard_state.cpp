// Registering, saving, telling failures once. Messages leave on the I/O loop, so that `save` costs the trainer little.
#include <millrace/core/kill_point.hpp>
#include <millrace/core/log.hpp>
#include <millrace/runtime/checkpoint_call.hpp>
#include <millrace/runtime/load_call.hpp>
#include <millrace/runtime/placement.hpp>
#include <millrace/runtime/shard_state.hpp>

#include <algorithm>

namespace millrace::runtime {

using actors::checkpoint_manager_actor;

namespace {

// How long a registration waits for the service to notice that a former job is gone.
constexpr std::chrono::seconds former_job_gone_within{2};
constexpr std::uint32_t try_again_ms = 50;
// By how much waits here outlast the deadlines of what they wait for.
constexpr std::chrono::seconds grace{5};

// The registration behind a request is gone; the process may be well.
bool ends_registration(errc code) {
  return code == errc::peer_lost || code == errc::unavailable || code == errc::not_found;
}

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
  for (auto& t : tensors)
    shard.tensors.tensors.push_back(t.desc);
  if (auto bad = validate(shard); !bad.ok())
    return fail(bad);
  s->tensors_ = std::move(tensors);
  // Nothing is exposed before there is somebody to read it; but memory that cannot be is refused now.
  if (auto list = transport::gather_list::of(s->tensors_, access_mode::read); !list)
    return fail(list.error().within("checkpoints of " + options.model));
  auto provider = place_checkpoints(options.model, options.group, s->core_->where().providers);
  if (!provider)
    return fail(provider.error());
  s->provider_ = *provider;
  return s;
}

std::uint32_t shard_state::timeout_ms() const {
  return runtime::timeout_ms(*core_, options_.timeout);
}

std::chrono::milliseconds shard_state::patience() const {
  return std::chrono::milliseconds{timeout_ms()} + grace;
}

// -- registering --------------------------------------------------------------------------------

void shard_state::attach(completion<void> done) {
  enroll_patiently([done = std::move(done)](const result<std::uint64_t>& r) {
    done(r ? result<void>{} : fail(r.error()));
  });
}

// The job before this one, or the connection before this one, may not have been missed yet.
void shard_state::enroll_patiently(completion<std::uint64_t> done) {
  enroll_until(steady_clock::now() + former_job_gone_within, std::move(done));
}

void shard_state::enroll_until(time_point until, completion<std::uint64_t> done) {
  enroll([self = shared_from_this(), until, done = std::move(done)](result<std::uint64_t> r) {
    if (r || r.error().code() != errc::busy || steady_clock::now() > until)
      return done(std::move(r));
    self->core_->runs_on()->loop()->run_after(
      try_again_ms, [self, until, done] { self->enroll_until(until, done); });
  });
}

// One at a time; who asks meanwhile shares its outcome.
void shard_state::enroll(completion<std::uint64_t> done) {
  actors::enroll_request request;
  {
    std::unique_lock guard{mutex_};
    if (registration_ != 0) {
      auto number = registration_;
      guard.unlock();
      return done(number);
    }
    enrolling_.push_back(std::move(done));
    if (enrolling_.size() > 1)
      return;
    if (!region_) {
      auto list = transport::gather_list::of(tensors_, access_mode::read);
      region_ = transport::expose(std::move(*list), access_mode::read);
    }
    request.source = region_.handle();
  }
  request.shard = shard_;
  request.busy = options_.busy;
  request.timeout_ms = timeout_ms();
  core_->ask<checkpoint_manager_actor, actors::enroll_request, actors::enroll_receipt>(
    core_->checkpoints(provider_), std::move(request),
    [self = shared_from_this()](result<actors::enroll_receipt> r) {
      self->on_enrolled(std::move(r));
    });
}

void shard_state::on_enrolled(result<actors::enroll_receipt> r) {
  std::vector<completion<std::uint64_t>> waiting;
  auto outcome = r.map([](auto& receipt) { return receipt.registration; });
  {
    std::lock_guard guard{mutex_};
    if (r) {
      registration_ = r->registration;
      if (receipt_.registration == 0)
        receipt_ = std::move(*r);
    }
    waiting.swap(enrolling_);
  }
  for (auto& done : waiting)
    done(outcome);
}

void shard_state::forget_registration(std::uint64_t registration) {
  std::lock_guard guard{mutex_};
  if (registration_ == registration)
    registration_ = 0;
}

// The caller gave a save up and wants its tensors to itself: the memory goes, and the registration with it.
void shard_state::abandon() {
  transport::region withdrawn;
  {
    std::lock_guard guard{mutex_};
    std::swap(withdrawn, region_);
  }
  withdrawn.withdraw();
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
  core_->ask<checkpoint_manager_actor, actors::leave_request, actors::done_reply>(
    core_->checkpoints(provider_), {number, finished},
    [done = std::move(done)](result<actors::done_reply> r) {
      // Gone already is as good.
      if (r || ends_registration(r.error().code()))
        done({});
      else
        done(fail(r.error()));
    });
}

// -- saving -------------------------------------------------------------------------------------

pending_save shard_state::failed_save(const save_record& record, const status& why) const {
  auto named = why.within("step " + std::to_string(record.step) + " was not saved");
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
      return failed_save(*record, {errc::unavailable, "the checkpointer is closed"});
    not_begun_ = std::exchange(failed_, std::nullopt);
    if (not_begun_)
      return failed_save(*record, *not_begun_);
    record->staged = core_->make_promise<save_receipt>();
    record->durable = core_->make_promise<save_receipt>();
    saves_.push_back(record);
  }
  auto undo = [weak = weak_from_this(), staged = record->staged.get_future()] {
    auto self = weak.lock();
    if (self && !staged.ready())
      self->abandon();
  };
  // Nobody has the futures yet: they are kept.
  static_cast<void>(record->staged.on_cancel(undo));
  static_cast<void>(record->durable.on_cancel(undo));
  core_->runs_on()->loop()->post([self = shared_from_this(), record] { self->send(record); });
  return {step, record->staged.get_future(), record->durable.get_future()};
}

void shard_state::send(const save_record_ptr& record) {
  std::uint64_t number;
  {
    std::lock_guard guard{mutex_};
    number = registration_;
  }
  if (number != 0)
    return send_to(record, number);
  enroll_patiently([self = shared_from_this(), record](result<std::uint64_t> r) {
    if (r)
      self->send_to(record, *r);
    else
      self->fail_save(record, 0, r.error().within("registering again"));
  });
}

void shard_state::send_to(const save_record_ptr& record, std::uint64_t registration) {
  std::uint32_t attempt;
  {
    std::lock_guard guard{mutex_};
    attempt = ++record->attempt;
  }
  auto self = shared_from_this();
  auto to = core_->checkpoints(provider_);
  actors::save_request request;
  request.registration = registration;
  request.step = record->step;
  request.snapshot = record->mode == save_mode::snapshot;
  request.timeout_ms = timeout_ms();
  core_->ask<checkpoint_manager_actor, actors::save_request, save_receipt>(
    to, request, [self, record, attempt, registration](result<save_receipt> r) {
      self->on_staged(record, attempt, registration, std::move(r));
    });
  core_->ask<checkpoint_manager_actor, actors::durable_request, save_receipt>(
    to, {registration, record->step, request.timeout_ms},
    [self, record, attempt, registration](result<save_receipt> r) {
      self->on_durable(record, attempt, registration, std::move(r));
    });
  MILLRACE_KILL_POINT("checkpointer.save_sent");
}

void shard_state::on_staged(
  const save_record_ptr& record, std::uint32_t attempt, std::uint64_t registration,
  result<save_receipt> r) {
  {
    std::lock_guard guard{mutex_};
    if (record->over || attempt != record->attempt)
      return;
  }
  if (r)
    return static_cast<void>(record->staged.set(std::move(r)));
  if (!begins_anew(record, registration, r.error()))
    fail_save(record, registration, r.error());
}

// A service that does not know the registration has not begun the save: it can be asked again, once.
bool shard_state::begins_anew(
  const save_record_ptr& record, std::uint64_t registration, const status& why) {
  {
    std::lock_guard guard{mutex_};
    if (why.code() != errc::not_found || record->attempt > 1)
      return false;
    ++record->attempt; // what was asked with the old number is stale
  }
  forget_registration(registration);
  send(record);
  return true;
}

void shard_state::on_durable(
  const save_record_ptr& record, std::uint32_t attempt, std::uint64_t registration,
  result<save_receipt> r) {
  {
    std::lock_guard guard{mutex_};
    if (record->over || attempt != record->attempt)
      return;
  }
  if (!r)
    return fail_save(record, registration, r.error());
  forget(record);
  record->staged.set(*r);
  record->durable.set(std::move(r));
}

void shard_state::forget(const save_record_ptr& record) {
  std::lock_guard guard{mutex_};
  record->over = true;
  std::erase(saves_, record);
}

void shard_state::fail_save(
  const save_record_ptr& record, std::uint64_t registration, const status& why) {
  {
    std::lock_guard guard{mutex_};
    if (std::exchange(record->over, true))
      return;
    std::erase(saves_, record);
    if (!failed_)
      failed_ = why;
  }
  if (registration != 0 && ends_registration(why.code()))
    forget_registration(registration);
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
        errc::deadline_exceeded,
        "step " + std::to_string(record->step) + " of " + options_.model + " is still being read"};
  return take_failure();
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
        errc::deadline_exceeded,
        "step " + std::to_string(record->step) + " of " + options_.model + " was not finished"};
  auto left = core_->make_promise<void>();
  leave(finished, [left](result<void> r) { left.set(std::move(r)); });
  auto gone = left.get_future();
  auto in_time = gone.wait_for(patience());
  {
    std::lock_guard guard{mutex_};
    region_.withdraw();
  }
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
  if (must_not_wait)
    return abandon();
  if (auto failed = close(false); !failed.ok())
    log().error(
      "a checkpoint was lost model={} rank={} why=\"{}\"", options_.model, options_.rank,
      failed.to_string());
}

// -- restoring ----------------------------------------------------------------------------------

future<actors::load_receipt> shard_state::restore(std::optional<std::uint64_t> step) {
  for (auto& record : under_way())
    if (!record->staged.get_future().ready())
      return ready_future<actors::load_receipt>(fail(
        errc::busy,
        "step " + std::to_string(record->step) + " of " + options_.model +
          " is still being read from these tensors; call fence() first"));
  return restore_shard(options_.rank, tensors_, step);
}

future<actors::load_receipt> shard_state::restore_shard(
  std::uint32_t rank, std::vector<tensor_view> targets, std::optional<std::uint64_t> step) {
  return restore_into(
    core_, provider_, options_.model, rank, step, std::move(targets), options_.timeout);
}

future<checkpoint_summary> shard_state::describe() const {
  return describe_checkpoints(core_, provider_, options_.model);
}

} // namespace millrace::runtime
