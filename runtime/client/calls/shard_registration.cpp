// How a shard is registered at a provider, and how its registration ends.
#include <millrace/core/log.hpp>
#include <millrace/runtime/client/calls/checkpoint_call.hpp>
#include <millrace/runtime/client/calls/shard_state.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace millrace::runtime {

using actors::checkpoint_service;

namespace {

// Registering waits this much longer than the service needs to notice that an earlier job's host is
// gone.
constexpr std::chrono::seconds former_job_grace{2};
// The first and the longest pause between two attempts.
constexpr std::uint32_t try_again_ms_min = 50;
constexpr std::uint32_t try_again_ms_max = 1000;

bool lie_together(const std::vector<tensor_view>& a, const std::vector<tensor_view>& b) {
  return std::ranges::equal(
    a, b, [](auto& x, auto& y) { return x.data == y.data && x.strides_bytes == y.strides_bytes; });
}

std::string described(const tensor_desc* tensor) {
  return tensor ? fmt::format("{} {}", tensor->name, describe(*tensor)) : "none";
}

} // namespace

bool shard_state::ends_registration(errc code) {
  return code == errc::peer_lost || code == errc::unavailable || code == errc::not_found;
}

status shard_state::closed_error() { return {errc::unavailable, "the checkpointer is closed"}; }

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
        auto list = to_expose_ ? std::move(*to_expose_)
                               : *transport::gather_list::of(tensors_, access_mode::read);
        to_expose_.reset();
        region_ = transport::expose(std::move(list), access_mode::read);
        ++exposure_;
      }
      request_.source = region_.handle();
    }
  }
  for (auto& w : refused)
    w.done(fail(closed_error()));
  if (!wanted)
    return;
  // Nothing else changes it while `enroll_asked_`.
  request_.timeout_ms = timeout_ms();
  core_->ask<checkpoint_service>(
    provider_, std::as_const(request_),
    [self = shared_from_this()](result<enroll_receipt> r) { self->on_enrolled(std::move(r)); });
}

void shard_state::on_enrolled(result<enroll_receipt> r) {
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
      extra_bytes_max_ = r->extra_bytes_max;
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

status shard_state::check_layout(const std::vector<tensor_view>& tensors) const {
  auto& registered = request_.shard.tensors.tensors;
  for (std::size_t i = 0; i < std::max(registered.size(), tensors.size()); ++i) {
    auto* was = i < registered.size() ? &registered[i] : nullptr;
    auto* is = i < tensors.size() ? &tensors[i].desc : nullptr;
    if (!was || !is || *was != *is)
      return {
        errc::invalid_argument,
        "tensor {} of {} was {} when it was registered and is {}; register another layout under "
        "another name",
        i,
        options_.model,
        described(was),
        described(is)};
  }
  return {};
}

// The handle that the provider has leads to the new memory, so it need not be told. It says whether
// the memory lies on a device: if that changes, the shard is registered anew by the next save.
status shard_state::rebind(const std::vector<tensor_view>& tensors) {
  if (auto why = core_->refusal(); !why.ok())
    return why;
  if (auto bad = check_layout(tensors); !bad.ok())
    return bad;
  transport::region left;
  bool anew = false;
  {
    std::lock_guard guard{mutex_};
    if (closed_)
      return closed_error();
    if (lie_together(tensors_, tensors))
      return {};
    if (auto bad = still_reading(); !bad.ok())
      return bad;
    auto list = transport::gather_list::of(tensors, access_mode::read);
    if (!list)
      return list.error().within("checkpoints of " + options_.model);
    anew = region_ && region_.handle().on_device == list->on_host();
    if (anew && !saves_.empty())
      return {
        errc::busy,
        "step {} of {} is not durable yet, and the tensors move between host and GPU; wait for it",
        saves_.front()->step, options_.model};
    tensors_ = tensors;
    if (region_ && !anew)
      left = region_.replace(std::move(*list));
    else
      to_expose_ = std::move(*list);
    ++rebinding_;
  }
  const std::shared_ptr<void> saves_wait{this, [self = shared_from_this()](void*) {
                                           {
                                             std::lock_guard guard{self->mutex_};
                                             --self->rebinding_;
                                           }
                                           self->send_soon();
                                         }};
  left.withdraw();
  if (anew)
    abandon();
  return {};
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

future<void> shard_state::close_async(bool finished) {
  if (auto refused = core_->refused<void>())
    return *refused;
  {
    std::lock_guard guard{mutex_};
    if (std::exchange(closed_, true))
      return ended_.get_future();
  }
  std::vector<future<save_receipt>> saving;
  for (auto& record : under_way())
    saving.push_back(record->durable.get_future());
  auto done = core_->make_promise<void>();
  auto hurry = saving.empty() ? nullptr : core_->hurry();
  when_all(saving).chain([self = shared_from_this(), done, finished, hurry](const auto&) mutable {
    hurry = nullptr;
    self->stop_registering();
    self->leave(finished, [self, done](const result<void>& gone) {
      self->withdraw();
      auto failure = self->take_failure();
      if (failure.ok() && !gone)
        failure = gone.error().within("ending the registration of " + self->options_.model);
      done.set(failure.ok() ? result<void>{} : fail(std::move(failure)));
      self->ended_.set({});
    });
  });
  return done.get_future();
}

void shard_state::stop_registering() {
  std::lock_guard guard{mutex_};
  left_ = true;
}

status shard_state::close(bool finished) {
  if (auto why = core_->refusal(); !why.ok())
    return why;
  auto is_first = [this] {
    std::lock_guard guard{mutex_};
    return !std::exchange(closed_, true);
  }();
  if (!is_first)
    return ended_.get_future().wait_for(2 * patience())
      ? status{}
      : status{errc::deadline_exceeded, "{} is still being closed", options_.model};
  status late;
  auto saving = under_way();
  auto hurry = saving.empty() ? nullptr : core_->hurry();
  for (auto& record : saving)
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
  ended_.set({});
  return failure;
}

void shard_state::give_up() {
  stop_registering();
  abandon();
}

void shard_state::drop() {
  if (!core_->refusal().ok())
    return;
  {
    std::lock_guard guard{mutex_};
    if (closed_)
      return;
  }
  auto& engine = *core_->runs_on();
  bool must_not_wait = engine.loop()->on_loop() || actors::handler_scope::inside() ||
    actors::inline_unit::current(engine.system());
  if (must_not_wait)
    return give_up();
  if (auto failed = close(false); !failed.ok())
    log().error(
      "a checkpoint was lost model={} rank={} why=\"{}\"", options_.model, options_.rank,
      failed.to_string());
}

} // namespace millrace::runtime
