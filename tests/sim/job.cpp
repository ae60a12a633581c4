// What a rank does, step by step, and what it demands of each answer. Called by the scenario of
// checkpoints.
#include <millrace/tests/sim/job.hpp>

#include <fmt/format.h>

#include <span>
#include <utility>

namespace millrace::sim {

using namespace std::chrono_literals;

namespace {

// In which a request, registering at a provider, a save, and its `durable` end.
constexpr nanoseconds request_time_max = 65s, attach_time_max = 140s, save_time_max = 120s,
                      durable_time_max = 180s;

template <class T>
std::string why(const result<T>& r) {
  return r ? "done" : r.error().to_string();
}

} // namespace

rank::rank(
  cluster& c, const provider_list& file, board& all, std::uint32_t number, std::size_t elements)
  : c_(c), all_(all), number_(number),
    process_(c.in.start_process("rank-" + std::to_string(number))), memory_(elements),
    must_restore_(all.least), times_back_(all.times_back) {
  c_.in.as(process_, [&] {
    client_.emplace(client::of(c_.settings(file)).value());
    flow_.push_back(train());
  });
}

void rank::end() {
  if (!client_)
    return;
  over_ = true;
  c_.in.kill(process_);
  c_.in.as(process_, [&] {
    job_.reset();
    client_.reset();
  });
  c_.in.bury(process_);
}

void rank::check() const {
  flow_.front().check();
  for (auto& [step, since] : awaited_)
    in_time(fmt::format("`durable` of step {}", step), since, all_.times(durable_time_max));
}

task rank::train() {
  co_await attach();
  if (over_)
    co_return;
  co_await resume();
  while (!over_ && !stopping_) {
    if (must_go_back()) {
      co_await go_back();
      continue;
    }
    if (all_.lockstep)
      co_await meet();
    co_await delay{c_.in, nanoseconds{c_.random.below(step_time_max_)}};
    if (!over_ && !must_go_back())
      co_await save();
    if (!over_ && c_.random.percent(20))
      co_await look_at(static_cast<std::uint32_t>(c_.random.below(all_.world_size)));
  }
}

// The provider may be away, or still know the job that has just died.
task rank::attach() {
  while (!over_) {
    auto since = c_.in.now();
    auto made = co_await client_->checkpointer(options(), views());
    if (over_)
      co_return;
    in_time("attaching", since, attach_time_max);
    c_.in.say(fmt::format("{} attaches: {}", process_.name, why(made)));
    if (made) {
      job_.emplace(*made);
      co_return;
    }
    demand_may_fail("attaching", made.error());
    co_await delay{c_.in, 50ms};
  }
}

task rank::resume() {
  while (!over_) {
    auto since = c_.in.now();
    auto now = co_await job_->describe();
    if (over_)
      co_return;
    in_time("describing", since, request_time_max);
    if (now && now->complete_steps.empty()) {
      demand(must_restore_ == 0, fmt::format("step {} is there", must_restore_));
      co_return;
    }
    if (now) {
      since = c_.in.now();
      auto restored = co_await job_->restore();
      if (over_)
        co_return;
      in_time("restoring", since, request_time_max);
      c_.in.say(fmt::format("{} restores: {}", process_.name, why(restored)));
      if (restored) {
        take_over(restored->version);
        co_return;
      }
      now = fail(restored.error());
    }
    demand_may_fail("restoring", now.error());
    co_await delay{c_.in, 50ms};
  }
}

void rank::take_over(std::uint64_t step) {
  step_ = step;
  demand(
    step >= must_restore_,
    fmt::format("{} restores {}, all ranks had saved {}", process_.name, step, must_restore_));
  demand_bytes_of(step);
}

void rank::demand_bytes_of(std::uint64_t step) const {
  demand(
    std::ranges::count(memory_, all_.content(step, number_)) == std::ssize(memory_),
    fmt::format("{} has the bytes of step {}", process_.name, step));
}

// One step, or those with the same bytes at once, of which any may be cancelled.
task rank::save() {
  std::ranges::fill(memory_, all_.content(step_ + 1, number_));
  std::vector<std::pair<pending_save, nanoseconds>> begun;
  auto cancelled = false;
  do {
    ++step_;
    begun.emplace_back(begin_save(), c_.in.now());
    if (all_.cancels && c_.random.percent(25)) {
      auto& one = c_.random.one_of(begun).first;
      c_.in.say(fmt::format("{} cancels {}", process_.name, one.step));
      // Others may wait in vain for a step that this rank does not save.
      cancelled = all_.disturbed = true;
      one.staged.cancel();
    }
    if (all_.cancels)
      co_await delay{c_.in, nanoseconds{c_.random.below(step_time_max_ / 4)}};
    if (over_)
      co_return;
  } while (all_.has_bytes_of_step_before(step_ + 1));
  std::vector<status> failures;
  for (auto& [one, at] : begun) {
    auto staged = co_await one.staged;
    if (over_)
      co_return;
    in_time("a save", at, all_.times(save_time_max));
    c_.in.say(fmt::format("{} saves {}: {}", process_.name, one.step, why(staged)));
    if (!staged)
      failures.push_back(staged.error());
  }
  // When one is cancelled or fails, the others may lose their registration and the exposed memory.
  for (auto& bad : failures) {
    auto code = bad.code();
    auto with_it = code == errc::cancelled || code == errc::permission_denied;
    if (!with_it || (!cancelled && failures.size() == 1))
      demand_may_fail("saving", bad);
  }
  if (failures.empty())
    co_return;
  static_cast<void>(job_->fence()); // nothing is in flight: takes the failure
  co_await delay{c_.in, 5ms};
}

pending_save rank::begin_save() {
  auto mode = c_.random.percent(20) ? save_mode::snapshot : save_mode::direct;
  auto saving = job_->save(step_, mode);
  awaited_.emplace(step_, c_.in.now());
  auto noted = [this, step = step_, run = times_back_](const result<save_receipt>& r) {
    awaited_.erase(step);
    if (r && !over_)
      all_.saw_durable(number_, step, run);
  };
  saving.durable.then(noted);
  return saving;
}

// The ranks agree on a step when all of them know what has become of their saves.
task rank::go_back() {
  times_back_ = all_.times_back;
  co_await until([this] { return !awaits_durable(); });
  all_.came_back[number_] = 1;
  co_await until([this] { return all_.all_came(1); });
  if (number_ == 0)
    co_await choose_step();
  co_await until([this] { return all_.goes_to.has_value(); });
  if (may_wait() && *all_.goes_to > 0)
    co_await restore(*all_.goes_to);
  if (over_)
    co_return;
  all_.fences[number_] = 0;
  all_.came_back[number_] = 2;
  co_await until([this] { return all_.all_came(2); });
}

// Looks more and more seldom, since others may wait for a transfer that never ends.
task rank::until(std::function<bool()> holds) {
  auto pause = nanoseconds{c_.random.between(50'000, 300'000)};
  while (may_wait() && !holds()) {
    co_await delay{c_.in, pause};
    pause = std::min<nanoseconds>(2 * pause, 20ms);
  }
}

// Sometimes it is the newest step, sometimes the one before.
task rank::choose_step() {
  while (may_wait()) {
    auto now = co_await job_->describe();
    if (over_)
      co_return;
    if (now) {
      auto& steps = now->complete_steps;
      auto to = steps.empty() ? 0 : c_.random.one_of(steps);
      c_.in.say(fmt::format("the job goes back to step {}", to));
      if (to > 0)
        all_.went_to(to);
      else
        all_.goes_to = 0;
      co_return;
    }
    demand_may_fail("describing", now.error());
    co_await delay{c_.in, 50ms};
  }
}

task rank::restore(std::uint64_t step) {
  while (may_wait()) {
    auto since = c_.in.now();
    auto restored = co_await job_->restore(step);
    if (over_)
      co_return;
    in_time("restoring", since, request_time_max);
    c_.in.say(fmt::format("{} goes back to {}: {}", process_.name, step, why(restored)));
    if (restored) {
      demand_bytes_of(step);
      step_ = step;
      co_return;
    }
    demand_may_fail("restoring", restored.error());
    co_await delay{c_.in, 50ms};
  }
}

// While that rank goes on saving. Sometimes it is any of the steps that were complete.
task rank::look_at(std::uint32_t other) {
  std::optional<std::uint64_t> wanted;
  if (c_.random.percent(30)) {
    auto now = co_await job_->describe();
    if (over_)
      co_return;
    if (now && !now->complete_steps.empty())
      wanted = c_.random.one_of(now->complete_steps);
  }
  std::vector<std::uint64_t> copy(memory_.size());
  auto into = views_of(copy);
  auto since = c_.in.now();
  auto restored = co_await job_->restore_shard(other, into, wanted);
  if (over_)
    co_return;
  in_time("reading a shard", since, request_time_max);
  if (!restored) {
    // The other may not have saved yet.
    if (restored.error().code() != errc::not_found)
      demand_may_fail("reading a shard", restored.error());
    co_return;
  }
  demand(
    restored->version == wanted.value_or(restored->version),
    fmt::format("step {} was asked for, not {}", wanted.value_or(0), restored->version));
  auto expected = all_.content(restored->version, other);
  demand(
    std::ranges::count(copy, expected) == std::ssize(copy),
    fmt::format("rank {} has the bytes of step {}", other, restored->version));
  if (c_.random.percent(50))
    co_await verify(other, restored->version);
}

task rank::verify(std::uint32_t other, std::uint64_t step) {
  auto since = c_.in.now();
  auto verified = co_await client_->checkpoints().verify(job_model, other, step);
  if (over_)
    co_return;
  in_time("verifying", since, request_time_max);
  if (verified)
    demand(verified->corrupt.empty(), fmt::format("step {} of rank {} is whole", step, other));
  else if (verified.error().code() != errc::not_found)
    demand_may_fail("verifying", verified.error());
}

// No rank trains on before all have left the same fence.
task rank::meet() {
  auto mine = ++all_.fences[number_];
  co_await until([this, mine] { return must_go_back() || all_.all_left(mine); });
}

checkpoint_options rank::options() const {
  checkpoint_options o;
  o.model = job_model;
  o.rank = number_;
  o.world_size = all_.world_size;
  return o;
}

std::vector<tensor_view> rank::views_of(std::vector<std::uint64_t>& memory) {
  std::vector<tensor_view> all;
  auto half = memory.size() / 2;
  auto first = std::span{memory}.first(half), second = std::span{memory}.subspan(half);
  all.push_back(tensor_view::dense("first", dtype::u64, {first.size()}, first));
  all.push_back(tensor_view::dense("second", dtype::u64, {second.size()}, second));
  return all;
}

void rank::in_time(const std::string& what, nanoseconds since, nanoseconds most) const {
  auto took = c_.in.now() - since;
  demand(
    took <= most,
    fmt::format(
      "{}: {} took {} s", process_.name, what, std::chrono::duration<double>(took).count()));
}

void rank::demand_may_fail(const std::string& doing, const status& bad) const {
  auto code = bad.code();
  demand(all_.disturbed, doing + " failed undisturbed with " + bad.to_string());
  demand(
    code == errc::unavailable || code == errc::peer_lost || code == errc::not_found ||
      code == errc::busy || code == errc::deadline_exceeded,
    doing + " failed with " + bad.to_string());
}

} // namespace millrace::sim
