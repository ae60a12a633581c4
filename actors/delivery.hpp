// Hands messages to actors from threads outside CAF, without waking another thread.
#pragma once

#include <millrace/actors/vocabulary.hpp>

#include <caf/actor_cast.hpp>
#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/execution_unit.hpp>
#include <caf/logger.hpp>
#include <caf/mailbox_element.hpp>
#include <caf/message_id.hpp>

#if defined(__SANITIZE_THREAD__)
#include <caf/invoke_message_result.hpp>
#include <caf/resumable.hpp>
#include <sanitizer/tsan_interface.h>
#endif

#include <deque>
#include <functional>
#include <memory>

namespace millrace::actors {

/// Runs actors on the thread that brought them a message.
///
/// *Problem*: waking a scheduler thread costs more than most of our handlers take, and a store of
/// 4 KiB would do it four times. Our actors neither block nor copy bulk bytes. So the thread that
/// has the message (the I/O loop, a mover, a caller) runs the actor itself, as CAF's own I/O thread
/// does with brokers. A burst is bounded: after `messages_max` messages the actor goes on at the
/// scheduler.
class inline_unit : public caf::execution_unit {
public:
  explicit inline_unit(caf::actor_system& system);
  ~inline_unit() override;

  void exec_later(caf::resumable* job) override;

  /// Runs the actors that have become runnable, until there are none.
  void run();

  /// Returns the unit that this thread is running for `system`, or null.
  static inline_unit* current(const caf::actor_system& system) noexcept;

private:
  static constexpr std::size_t messages_max = 256;

  std::deque<caf::resumable*> jobs_;
  inline_unit* outer_ = nullptr;
};

/// Returns whether the deterministic test scheduler runs the actors of `system`. Not so on a
/// simulated machine, where they run as in production.
bool is_deterministic(caf::actor_system& system);

/// Calls `send(host)`, which enqueues messages for `host`, and runs the actors here that were idle.
/// Returns when they have handled the messages or another thread is about to. Under the
/// deterministic test scheduler it only enqueues.
/// Threads: any.
template <class F>
void with_unit(caf::actor_system& system, F send) {
  if (is_deterministic(system))
    return send(nullptr);
  // Inside a handler the running unit takes the job after the handler, so that handlers never nest.
  if (auto* running = inline_unit::current(system))
    return send(running);
  inline_unit unit{system};
  send(&unit);
  unit.run();
}

/// Enqueues a message, see `with_unit`.
/// Threads: any.
void deliver(caf::actor_system& system, const caf::strong_actor_ptr& to, caf::message content);

/// Runs `f` in the context of the actor behind `to` (which handles `step`).
void run_in(caf::actor_system& system, const caf::strong_actor_ptr& to, std::function<void()> f);

/// Marks this thread as being inside an actor's handler, whichever thread runs that actor.
class handler_scope {
public:
  handler_scope() { ++depth_; }
  ~handler_scope() { --depth_; }
  handler_scope(const handler_scope&) = delete;
  handler_scope& operator=(const handler_scope&) = delete;

  static bool inside() noexcept { return depth_ > 0; }

private:
  static thread_local int depth_;
};

/// Lets this thread go of the system that it has made, or in which it has spawned an actor.
///
/// *Problem*: CAF then keeps a reference to the system's logger for the thread, also where nothing
/// is logged, and the end of the system waits for the logger's. If another thread ends the system,
/// it waits until this one has ended.
inline void let_go_of_system() noexcept { caf::logger::set_current_actor_system(nullptr); }

/// The base of every actor: `Base`, which CAF makes from the interface. The thread that spawns it
/// keeps nothing of the system. Under the thread sanitizer it also reports what CAF hands from
/// thread to thread.
///
/// *Problem*: CAF is not instrumented. The sanitizer sees neither its mailboxes nor its scheduler,
/// and would report a race of every handler with the sender of its message and with the handler
/// before it. So everything that a thread does before it sends is released here, and acquired
/// before the actor handles the message. Everything that a handler does is released before another
/// thread may run the next handler. Nothing else is released: two threads that do not meet at an
/// actor still race.
template <class Base>
class handed_over : public Base {
public:
  using Base::Base;

  void launch(caf::execution_unit* host, bool lazy, bool hide) override {
    release();
    Base::launch(host, lazy, hide);
    let_go_of_system();
  }

  /// Makes what was done before any message was sent to this actor visible to the sanitizer. Called
  /// also by what takes messages from the mailbox itself.
  void acquire() noexcept {
#if defined(__SANITIZE_THREAD__)
    __tsan_acquire(this);
#endif
  }

#if defined(__SANITIZE_THREAD__)
  using Base::consume;
  using Base::enqueue;

  void enqueue(caf::mailbox_element_ptr message, caf::execution_unit* host) override {
    release();
    Base::enqueue(std::move(message), host);
  }

  caf::resumable::resume_result resume(caf::execution_unit* host, std::size_t messages) override {
    acquire();
    return Base::resume(host, messages);
  }

  void initialize() override {
    Base::initialize();
    release();
  }

  // Each message acquires anew, since it may have been sent while the actor was running.
  caf::invoke_message_result consume(caf::mailbox_element& message) override {
    acquire();
    auto outcome = Base::consume(message);
    release();
    return outcome;
  }

  bool cleanup(caf::error&& why, caf::execution_unit* host) override {
    acquire();
    auto cleaned = Base::cleanup(std::move(why), host);
    release();
    return cleaned;
  }

  // Runs on the thread that drops the last reference.
  void on_destroy() override {
    acquire();
    Base::on_destroy();
  }
#endif

private:
  void release() noexcept {
#if defined(__SANITIZE_THREAD__)
    __tsan_release(this);
#endif
  }
};

/// Ends an actor. The actor's `on_exit` answers the requests that are still open.
void end_actor(caf::actor_system& system, const caf::strong_actor_ptr& actor);

/// Starts the threads of a system. Any thread may end it.
std::unique_ptr<caf::actor_system> start_system(caf::actor_system_config& config);

/// Ends the threads of a system. An actor that outside code still references does not delay it.
void end_system(std::unique_ptr<caf::actor_system> system);

} // namespace millrace::actors
