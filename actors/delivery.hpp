// Hands messages to actors from threads that are not CAF's, without a hand-over between threads.
#pragma once

#include <millrace/actors/vocabulary.hpp>

#include <caf/actor_cast.hpp>
#include <caf/actor_system.hpp>
#include <caf/execution_unit.hpp>
#include <caf/mailbox_element.hpp>
#include <caf/message_id.hpp>

#if defined(__SANITIZE_THREAD__)
#include <caf/invoke_message_result.hpp>
#include <caf/resumable.hpp>
#include <sanitizer/tsan_interface.h>
#endif

#include <deque>
#include <functional>

namespace millrace::actors {

/// Runs actors on the thread that brought them a message.
///
/// *Problem*: waking a scheduler thread costs more than most of our handlers take; a 4 KiB store would pay it
/// four times. Our actors neither block nor copy bulk bytes, so the thread that has the message (the I/O loop,
/// a mover, a caller) runs the actor itself, as CAF's own I/O thread does with brokers. A burst is bounded: after
/// `messages_max` the actor goes on at the scheduler.
class inline_unit : public caf::execution_unit {
public:
  explicit inline_unit(caf::actor_system& system);
  ~inline_unit() override;

  void exec_later(caf::resumable* job) override;

  /// Runs what has become runnable, until nothing is.
  void run();

  /// The unit that this thread is running for `system`, or null.
  static inline_unit* current(const caf::actor_system& system) noexcept;

private:
  static constexpr std::size_t messages_max = 256;

  std::deque<caf::resumable*> jobs_;
  inline_unit* outer_ = nullptr;
};

/// Enqueues a message and runs the actor here if it was idle. Any thread; returns when the actor has handled it
/// or somebody else is about to. Under the deterministic test scheduler it only enqueues.
void deliver(caf::actor_system& system, const caf::strong_actor_ptr& to, caf::message content);

/// Runs `f` in the context of the actor behind `to` (which handles `step`).
void run_in(caf::actor_system& system, const caf::strong_actor_ptr& to, std::function<void()> f);

/// Marks a thread as being inside an actor's handler, whoever runs that actor.
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

/// The base of every actor: `Base`, which CAF makes of the interface. Under the thread sanitizer it also tells what CAF
/// hands from thread to thread.
///
/// *Problem*: the library is not instrumented. The sanitizer sees neither its mailboxes nor its scheduler, and would
/// report every handler: against whoever sent the message, and against the handler before it. So what a thread did
/// before it sends is released here, and acquired before the actor looks at what was sent; and what one handler left
/// is released before another thread may run the next. Nothing else is: two threads that meet at no actor still race.
template <class Base>
class handed_over : public Base {
public:
  using Base::Base;

#if defined(__SANITIZE_THREAD__)
  using Base::consume;
  using Base::enqueue;

  void enqueue(caf::mailbox_element_ptr message, caf::execution_unit* host) override {
    release();
    Base::enqueue(std::move(message), host);
  }

  void launch(caf::execution_unit* host, bool lazy, bool hide) override {
    release();
    Base::launch(host, lazy, hide);
  }

  caf::resumable::resume_result resume(caf::execution_unit* host, std::size_t messages) override {
    acquire();
    return Base::resume(host, messages);
  }

  void initialize() override {
    Base::initialize();
    release();
  }

  // Each message anew: it may have been sent while the actor was running.
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

  // Whoever lets go last.
  void on_destroy() override {
    acquire();
    Base::on_destroy();
  }

private:
  void acquire() noexcept { __tsan_acquire(this); }
  void release() noexcept { __tsan_release(this); }
#endif
};

/// Ends an actor; what it has promised is answered by its `on_exit`.
void end_actor(caf::actor_system& system, const caf::strong_actor_ptr& actor);

} // namespace millrace::actors
