// The queue of events, and the actors of all processes between two events.
#include <millrace/tests/sim/world.hpp>

#include <caf/detail/test_actor_clock.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace millrace::sim {

namespace {

constexpr auto never = nanoseconds::max();
constexpr std::uint64_t wall_clock_start_ns = 1'800'000'000'000'000'000;

caf::scheduler::test_coordinator& scheduler_of(caf::actor_system& system) {
  return dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler());
}

caf::detail::test_actor_clock& clock_of(caf::actor_system& system) {
  return scheduler_of(system).clock();
}

} // namespace

std::uint64_t simulated_loop::after(nanoseconds delay, std::function<void()> f) {
  if (stopped_)
    return 0;
  auto number = std::make_shared<std::uint64_t>(0);
  *number = world_.after(process_, delay, [this, number, f = std::move(f)]() mutable {
    mine_.erase(*number);
    auto keep = weak_from_this().lock();
    auto before = std::exchange(on_loop_, true);
    f();
    f = nullptr;
    on_loop_ = before;
  });
  mine_.insert(*number);
  return *number;
}

void simulated_loop::cancel_timer(std::uint64_t timer) {
  if (mine_.erase(timer) > 0)
    world_.cancel(timer);
}

void simulated_loop::stop() {
  if (std::exchange(stopped_, true))
    return;
  for (auto timer : std::exchange(mine_, {}))
    world_.cancel(timer);
  if (auto f = std::exchange(on_stop, nullptr))
    f();
}

void simulated_loop::help(const std::function<bool()>& done, time_point deadline) {
  world_.run_until(done, deadline.time_since_epoch());
}

world::world(std::uint64_t seed) : random(seed) {
  demand(simulating_machine == nullptr, "there is one world at a time");
  current_ = &start_process("outside");
  simulating_machine = this;
}

world::~world() {
  // What events own may make events.
  while (!living_.events.empty()) {
    due_.clear();
    std::exchange(living_.events, {}).clear();
  }
  simulating_machine = nullptr;
}

process& world::start_process(const std::string& name) {
  peer_id id;
  auto number = static_cast<std::uint32_t>(processes_.size()) + 1;
  fill_random(reinterpret_cast<std::byte*>(id.bytes.data()), id.bytes.size());
  processes_.push_back(std::unique_ptr<process>{new process{name, number, id}});
  return *processes_.back();
}

process* world::find(const peer_id& id) const {
  auto found = std::ranges::find_if(processes_, [&](auto& p) { return p->id == id; });
  return found == processes_.end() ? nullptr : found->get();
}

void world::kill(process& p) {
  demand(p.alive(), "a process dies once");
  auto own = std::make_unique<timeline>();
  own->now = living_.now;
  for (auto i = living_.events.begin(); i != living_.events.end();) {
    auto at = i++;
    if (at->second.of != &p)
      continue;
    due_[at->first.second] = {own.get(), at->first.first};
    own->events.insert(living_.events.extract(at));
  }
  p.after_death_ = std::move(own);
  for (auto& f : on_death_)
    f(p);
}

void world::bury(process& p) {
  entered inside{*this, p};
  auto& own = *p.after_death_;
  while (!own.events.empty()) {
    auto first = own.events.extract(own.events.begin());
    due_.erase(first.key().second);
  }
}

std::uint64_t world::after(process& p, nanoseconds delay, std::function<void()> f) {
  auto number = ++last_event_;
  auto& t = time_of(p);
  auto at = t.now + std::max(delay, nanoseconds{0});
  t.events.emplace(timeline::event_key{at, number}, timeline::event{&p, std::move(f)});
  due_.emplace(number, std::pair{&t, at});
  return number;
}

void world::cancel(std::uint64_t number) {
  auto due = due_.find(number);
  if (due == due_.end())
    return;
  auto [t, at] = due->second;
  due_.erase(due);
  auto dropped = t->events.extract({at, number});
}

void world::add_system(caf::actor_system& system) {
  current_->systems_.push_back(&system);
  clock_of(system).current_time = time_point{here().now};
}

void world::remove_system(caf::actor_system& system) {
  for (auto& p : processes_)
    std::erase(p->systems_, &system);
}

std::uint64_t world::wall_clock_ns() noexcept {
  return wall_clock_start_ns + static_cast<std::uint64_t>(now().count());
}

void world::fill_random(std::byte* data, std::size_t size_bytes) noexcept {
  for (std::size_t at = 0; at < size_bytes; at += sizeof(std::uint64_t)) {
    auto value = random.next();
    std::memcpy(data + at, &value, std::min(sizeof(value), size_bytes - at));
  }
}

void world::run_later(std::function<void()> job, nanoseconds delay) {
  after(*current_, delay + nanoseconds{random.between(1'000, 200'000)}, std::move(job));
}

// Calls `f` as each process that lives in this time, with each of its actor systems.
template <class F>
void world::each_system(timeline& t, F f) {
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    auto& p = *processes_[i];
    if (&time_of(p) != &t)
      continue;
    entered inside{*this, p};
    for (auto* system : std::vector{p.systems_})
      f(*system);
  }
}

// The earliest event, or timer of an actor.
nanoseconds world::next_event(timeline& t) {
  auto next = t.events.empty() ? never : t.events.begin()->first.first;
  each_system(t, [&](auto& system) {
    if (auto& timers = clock_of(system).schedule(); !timers.empty())
      next = std::min<nanoseconds>(next, timers.begin()->first.time_since_epoch());
  });
  return next;
}

void world::pass_to(timeline& t, nanoseconds time) {
  t.now = std::max(t.now, time);
  each_system(t, [&](auto& system) {
    auto& clock = clock_of(system);
    timers_ += clock.advance_time(time_point{t.now} - clock.now());
  });
  work_off(t);
}

// Actors run where their message arrives; this is for those that a timer or a burst made runnable.
void world::work_off(timeline& t) {
  for (bool more = true; std::exchange(more, false);)
    each_system(t, [&](auto& system) {
      while (scheduler_of(system).try_run_once())
        more = true;
    });
}

void world::step(timeline& t, nanoseconds limit) {
  auto next = next_event(t);
  if (next > limit)
    return pass_to(t, limit);
  pass_to(t, next);
  if (t.events.empty() || t.events.begin()->first.first > t.now)
    return;
  auto first = t.events.extract(t.events.begin());
  due_.erase(first.key().second);
  ++happened_;
  note(static_cast<std::uint64_t>(t.now.count()));
  note(first.mapped().of->number);
  if (says_events_)
    say(fmt::format("EVENT {} {} {}", first.mapped().of->name, happened_, trace_));
  {
    entered inside{*this, *first.mapped().of};
    first.mapped().run();
    first.mapped().run = nullptr;
  }
  work_off(t);
}

bool world::run_until(const std::function<bool()>& done, nanoseconds deadline) {
  work_off(here());
  // If the process dies meanwhile, its own time goes on.
  while (!done() && here().now < deadline)
    step(here(), deadline);
  return done();
}

void world::say(const std::string& what) {
  if (talks_)
    std::printf("%12.6f %s\n", std::chrono::duration<double>(now()).count(), what.c_str());
}

void world::run_for(nanoseconds time) {
  run_until([] { return false; }, now() + time);
}

} // namespace millrace::sim
