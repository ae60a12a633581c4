// The execution unit for threads outside CAF.
#include <millrace/actors/delivery.hpp>
#include <millrace/core/background_thread.hpp>
#include <millrace/core/simulated_machine.hpp>

#include <caf/abstract_actor.hpp>
#include <caf/exit_reason.hpp>
#include <caf/make_message.hpp>
#include <caf/resumable.hpp>
#include <caf/scheduler/abstract_coordinator.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <caf/system_messages.hpp>

#include <typeinfo>

namespace millrace::actors {

namespace {

thread_local inline_unit* innermost = nullptr;

// Drops the reference that this thread has to a job. The thread sanitizer knows nothing of CAF's
// counts, and must not see the read: another thread may drop the last reference right after.
__attribute__((no_sanitize("thread"))) void let_go(caf::resumable& job) {
  job.intrusive_ptr_release_impl();
}

} // namespace

thread_local int handler_scope::depth_ = 0;

bool is_deterministic(caf::actor_system& system) {
  auto& scheduler = system.scheduler();
  return typeid(scheduler) == typeid(caf::scheduler::test_coordinator) && !simulated();
}

inline_unit::inline_unit(caf::actor_system& system) : caf::execution_unit(&system) {
  outer_ = std::exchange(innermost, this);
}

inline_unit::~inline_unit() { innermost = outer_; }

void inline_unit::exec_later(caf::resumable* job) { jobs_.push_back(job); }

void inline_unit::run() {
  while (!jobs_.empty()) {
    auto* job = jobs_.front();
    jobs_.pop_front();
    switch (job->resume(this, messages_max)) {
    case caf::resumable::resume_later:
      // The scheduler takes over the reference.
      system().scheduler().enqueue(job);
      break;
    default:
      let_go(*job);
    }
  }
}

inline_unit* inline_unit::current(const caf::actor_system& system) noexcept {
  for (auto* unit = innermost; unit; unit = unit->outer_)
    if (&unit->system() == &system)
      return unit;
  return nullptr;
}

void deliver(caf::actor_system& system, const caf::strong_actor_ptr& to, caf::message content) {
  with_unit(system, [&](caf::execution_unit* host) {
    to->enqueue(nullptr, caf::make_message_id(), std::move(content), host);
  });
}

void end_actor(caf::actor_system& system, const caf::strong_actor_ptr& actor) {
  deliver(
    system, actor, caf::make_message(caf::exit_msg{actor->address(), caf::exit_reason::kill}));
}

std::unique_ptr<caf::actor_system> start_system(caf::actor_system_config& config) {
  signals_blocked for_its_threads;
  auto system = std::make_unique<caf::actor_system>(config);
  let_go_of_system();
  return system;
}

// CAF orders its own threads before the end of a system, by means that the thread sanitizer does
// not see in a library that is not instrumented. tests/tsan.supp names `end_system`, which a report
// shows as the caller of this function.
[[gnu::noinline]] static void destroy(std::unique_ptr<caf::actor_system>& system) {
  system->await_actors_before_shutdown(false);
  system.reset();
}

[[gnu::noinline]] void end_system(std::unique_ptr<caf::actor_system> system) { destroy(system); }

void run_in(caf::actor_system& system, const caf::strong_actor_ptr& to, std::function<void()> f) {
  deliver(system, to, caf::make_message(own_work{std::move(f)}));
}

} // namespace millrace::actors
