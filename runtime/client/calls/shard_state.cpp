// Saves, and reports each failure once. shard_registration.cpp has the rest of the class.
#include <millrace/core/kill_point.hpp>
#include <millrace/runtime/client/calls/checkpoint_call.hpp>
#include <millrace/runtime/client/calls/load_call.hpp>
#include <millrace/runtime/client/calls/selected.hpp>
#include <millrace/runtime/client/calls/shard_state.hpp>
#include <millrace/transport/memory/device_memory.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace millrace::runtime {

using actors::checkpoint_service;

namespace {

// Waits here outlast the deadlines of the requests by this much.
constexpr std::chrono::seconds grace{5};

// Returns true for an error that this side may have detected by itself: the service may still be
// reading the tensors.
bool may_still_run(errc code) {
  return code == errc::deadline_exceeded || code == errc::peer_lost || code == errc::unavailable ||
    code == errc::protocol_error || code == errc::internal;
}

} // namespace

shard_state::shard_state(std::shared_ptr<client_core> core, const checkpoint_options& options)
  : core_(std::move(core)), options_(options), ended_(core_->make_promise<void>()) {
  request_.busy = options.busy;
}

result<std::shared_ptr<shard_state>> shard_state::make(
  std::shared_ptr<client_core> core, const checkpoint_options& options,
  std::vector<tensor_view> tensors) {
  auto s = kept_from_forks(new shard_state{std::move(core), options});
  auto& shard = s->request_.shard;
  shard.model = options.model;
  shard.rank = options.rank;
  shard.world_size = options.world_size;
  shard.keep = options.keep;
  shard.axes = options.axes;
  shard.metadata = options.metadata;
  shard.places = options.places;
  shard.life = options.life;
  if (shard.life == 0)
    random_bytes(&shard.life, sizeof(shard.life));
  shard.tensors.tensors.reserve(tensors.size());
  for (auto& t : tensors)
    shard.tensors.tensors.push_back(t.desc);
  if (auto bad = validate(shard); !bad.ok())
    return fail(bad);
  s->tensors_ = std::move(tensors);
  // Memory is exposed only when it is needed, but views that cannot be exposed are refused now.
  auto list = transport::gather_list::of(s->tensors_, access_mode::read);
  if (!list)
    return fail(list.error().within("checkpoints of " + options.model));
  s->to_expose_ = std::move(*list);
  return s;
}

std::uint32_t shard_state::timeout_ms() const { return core_->timeout_ms(options_.timeout); }

std::chrono::milliseconds shard_state::patience() const {
  return std::chrono::milliseconds{timeout_ms()} + grace;
}

pending_save shard_state::failed_save(const save_record& record, const status& why) const {
  auto named = why.within(fmt::format("step {} was not saved", record.step));
  return {
    record.step, ready_future<save_receipt>(fail(named)), ready_future<save_receipt>(fail(named))};
}

// The bound is that of the last registration. A provider of an older build would ignore the bytes.
status shard_state::check_extra(std::uint64_t size_bytes) const {
  auto most = [this] {
    std::lock_guard guard{mutex_};
    return extra_bytes_max_;
  }();
  if (size_bytes <= most)
    return {};
  if (most == 0)
    return {
      errc::unsupported,
      "provider {} keeps no bytes of the user with a version: it is of an older build, or its "
      "checkpoints.extra_max is 0",
      receipt_.provider};
  return {
    errc::invalid_argument,
    "{} bytes of the user; provider {} keeps {} with a version (checkpoints.extra_max)", size_bytes,
    receipt_.provider, most};
}

pending_save shard_state::save(
  std::uint64_t step, save_mode mode, std::span<const std::byte> extra,
  const std::optional<device_stream>& after) {
  auto record = std::make_shared<save_record>();
  record->step = step;
  record->mode = mode;
  auto at_once = false;
  if (auto why = core_->refusal(); !why.ok())
    return failed_save(*record, why);
  if (step > step_max)
    return failed_save(
      *record, {errc::invalid_argument, "step {}: the largest one is {}", step, step_max});
  if (auto bad = check_extra(extra.size()); !bad.ok())
    return failed_save(*record, bad);
  if (!extra.empty()) {
    record->extra.assign(extra.begin(), extra.end());
    auto list = transport::gather_list::of(
      {{extra_tensor(extra.size()), record->extra.data(), {}}}, access_mode::read);
    if (!list)
      return failed_save(*record, list.error());
    record->extra_region = transport::expose(std::move(*list), access_mode::read);
  }
  {
    std::lock_guard guard{mutex_};
    if (closed_)
      return failed_save(*record, closed_error());
    if (auto earlier = failures_.refuse_save())
      return failed_save(*record, *earlier);
    record->staged = core_->make_promise<save_receipt>();
    record->durable = core_->make_promise<save_receipt>();
    record->run_min = run_min_;
    record->went_back = std::exchange(went_back_, false);
    record->ready = !after;
    if (after)
      record->until = core_->deadline_after(options_.timeout);
    has_saved_ = true;
    at_once = record->ready && registration_ != 0 && still_reading().ok();
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
  // Two small frames cost the trainer less than waking another thread. But an actor of this process
  // would run on the trainer's thread, and while a connection is made, or another save is on its
  // way, this one could overtake what waits.
  if (at_once && core_->sends_at_once(provider_))
    send_ready();
  else if (!after)
    send_soon();
  else if (auto bad = send_after(record, *after); !bad.ok())
    return not_begun(record, bad);
  return {step, record->staged.get_future(), record->durable.get_future()};
}

// The next save can begin: it may need no stream.
pending_save shard_state::not_begun(const save_record_ptr& record, const status& why) {
  {
    std::lock_guard guard{mutex_};
    std::erase(saves_, record);
    went_back_ |= record->went_back;
    failures_.not_begun(why);
  }
  send_soon();
  return failed_save(*record, why);
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
    failures_.keep(record->step, why);
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

// The provider is not asked before: its threads, its memory and its deadline would wait for the
// device, too.
status shard_state::send_after(const save_record_ptr& record, const device_stream& stream) {
  auto kind = transport::find_device_kind(stream.kind);
  if (!kind)
    return kind.error();
  auto then = [weak = weak_from_this(), of = std::weak_ptr{record}](auto act) {
    return [weak, of, act] {
      auto self = weak.lock();
      auto waiting = of.lock();
      if (self && waiting)
        (self.get()->*act)(waiting);
    };
  };
  auto loop = core_->runs_on()->loop();
  loop->run_after(timeout_ms(), then(&shard_state::give_up_stream));
  return (*kind)->when_reached(
    stream.handle, [loop, reached = then(&shard_state::send)] { loop->post(reached); });
}

void shard_state::give_up_stream(const save_record_ptr& record) {
  {
    std::lock_guard guard{mutex_};
    if (record->ready || record->sent.attempt > 0)
      return;
  }
  fail_save(
    record, {},
    {errc::deadline_exceeded, "the device has not done the work before step {} within {} ms",
     record->step, timeout_ms()});
}

void shard_state::send_soon() {
  core_->runs_on()->loop()->post([self = shared_from_this()] { self->send_ready(); });
}

// Called with `mutex_` held.
bool shard_state::in_place(const save_record& record) const {
  return record.sent.registration != 0 && record.sent.registration == registration_;
}

// Called with `mutex_` held.
status shard_state::still_reading() const {
  for (auto& record : saves_)
    if (!record->staged.get_future().ready())
      return {
        errc::busy,
        "step {} of {} is still being read from these tensors; wait for the fence first",
        record->step, options_.model};
  return {};
}

// A provider takes the steps of a shard in their order: a save waits until those before it are over
// or in place. One thread sends at a time, so that no two change that order. What becomes ready
// meanwhile is left to that one: it looks again, under the lock, before it stops.
void shard_state::send_ready() noexcept {
  std::unique_lock lock{mutex_};
  if (std::exchange(sends_, true))
    return;
  while (auto next = take_ready()) {
    auto now = next->sent;
    lock.unlock();
    if (now.registration != 0)
      ask_to_save(next, now);
    else
      enroll_patiently(next, [self = shared_from_this(), next](const auto& r) {
        self->on_registered(next, r ? status{} : r.error());
      });
    lock.lock();
  }
  sends_ = false;
}

// Called with `mutex_` held. Returns the save that is to be sent now, or to be registered for.
shard_state::save_record_ptr shard_state::take_ready() {
  auto first = std::ranges::find_if_not(saves_, [this](auto& record) { return in_place(*record); });
  if (registering_ || rebinding_ > 0 || first == saves_.end())
    return nullptr;
  auto& next = *first;
  if (!next->ready || next->sent.registration != 0)
    return nullptr;
  registering_ = registration_ == 0;
  if (!registering_)
    next->sent = {registration_, exposure_, next->sent.attempt + 1};
  return next;
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

std::uint32_t shard_state::left_ms(const save_record& record) const {
  if (!record.until)
    return timeout_ms();
  auto left = std::chrono::ceil<std::chrono::milliseconds>(*record.until - steady_clock::now());
  return static_cast<std::uint32_t>(std::max<std::int64_t>(left.count(), 1));
}

void shard_state::ask_to_save(const save_record_ptr& record, const sending& now) {
  if (auto bad = check_extra(record->extra.size()); !bad.ok())
    return fail_save(record, now, bad);
  auto self = shared_from_this();
  actors::save_request request;
  request.registration = now.registration;
  request.step = record->step;
  request.snapshot = record->mode == save_mode::snapshot;
  request.timeout_ms = left_ms(*record);
  request.run_min = record->run_min;
  request.went_back = record->went_back;
  if (record->extra_region)
    request.extra = record->extra_region.handle();
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
    check_receipt(std::move(r), {options_.model, record.step, size_bytes(request_.shard.tensors)});
  if (checked && checked->rank != options_.rank)
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
    failures_.keep(record->step, why);
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
  return failures_.take();
}

status shard_state::fence() {
  if (auto why = core_->refusal(); !why.ok())
    return why;
  std::shared_ptr<void> hurry;
  for (auto& record : under_way()) {
    auto staged = record->staged.get_future();
    if (!hurry && !staged.ready())
      hurry = core_->hurry();
    if (!staged.wait_for(patience()))
      return {
        errc::deadline_exceeded, "step {} of {} is still being read", record->step, options_.model};
  }
  return take_failure();
}

// Where no more streams can wait, this thread does.
status shard_state::fence(const device_stream& stream) {
  if (auto why = core_->refusal(); !why.ok())
    return why;
  auto kind = transport::find_device_kind(stream.kind);
  if (!kind)
    return kind.error();
  auto reading = being_read();
  if (reading.empty())
    return take_failure();
  auto gate = (*kind)->hold(stream.handle);
  if (!gate)
    return gate.error().code() == errc::busy ? fence() : gate.error();
  when_all(reading).chain([gate = *gate, hurry = core_->hurry()](const auto&) mutable {
    hurry = nullptr; // before the program goes on
    gate->open();
  });
  return take_failure();
}

std::vector<future<save_receipt>> shard_state::being_read() const {
  std::vector<future<save_receipt>> out;
  for (auto& record : under_way())
    if (auto staged = record->staged.get_future(); !staged.ready())
      out.push_back(std::move(staged));
  return out;
}

// The staged future of a save ends by the save's deadline.
future<void> shard_state::fence_async() {
  if (auto refused = core_->refused<void>())
    return *refused;
  auto reading = being_read();
  auto done = core_->make_promise<void>();
  auto hurry = reading.empty() ? nullptr : core_->hurry();
  when_all(reading).chain([self = shared_from_this(), done, hurry](const auto&) mutable {
    hurry = nullptr; // before the program goes on
    auto failure = self->take_failure();
    done.set(failure.ok() ? result<void>{} : fail(std::move(failure)));
  });
  return done.get_future();
}

future<load_receipt> shard_state::restore(std::optional<std::uint64_t> step) {
  if (auto refused = core_->refused<load_receipt>())
    return *refused;
  std::vector<tensor_view> targets;
  {
    std::lock_guard guard{mutex_};
    if (auto bad = still_reading(); !bad.ok())
      return ready_future<load_receipt>(fail(std::move(bad)));
    targets = tensors_;
    // Saves after a restore do not belong to the run of the earlier saves. All of them say so,
    // since none is known to have begun before its answer comes.
    if (std::exchange(has_saved_, false)) {
      run_min_ = run_ + 1;
      went_back_ = true;
    }
  }
  return restore_shard(options_.rank, whole(std::move(targets)), step);
}

future<load_receipt> shard_state::restore_shard(
  std::uint32_t rank, std::vector<load_target> targets, std::optional<std::uint64_t> step) {
  if (auto refused = core_->refused<load_receipt>())
    return *refused;
  auto call = load_call::make(core_);
  restore_into(
    call, core_, provider_, options_.model, rank, step, std::move(targets),
    core_->deadline_after(options_.timeout));
  return call->outcome();
}

future<checkpoint_summary> shard_state::describe() const {
  if (auto refused = core_->refused<checkpoint_summary>())
    return *refused;
  return describe_checkpoints(
    core_, provider_, options_.model, core_->deadline_after(options_.timeout));
}

} // namespace millrace::runtime
