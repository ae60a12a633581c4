// Which callback a thread of control is running, for another thread that watches it. Written by the
// I/O loop and by actors that run on it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <typeinfo>

namespace millrace {

/// Returns the name of a type as it is in the source.
std::string name_of(const std::type_info& type);

/// What one thread of control is doing.
/// Threads: one writes, any thread reads. A reader may see a callback together with the message of
/// the callback before it, never anything that is not a type of the program.
class activity {
public:
  struct sample {
    std::uint64_t begun = 0;                  // callbacks so far
    const std::type_info* callback = nullptr; // the one that runs; null: none
    const std::type_info* message = nullptr;  // the message of the actor that it runs; null: none
  };

  sample now() const noexcept {
    return {
      begun_.load(std::memory_order_acquire), callback_.load(std::memory_order_relaxed),
      message_.load(std::memory_order_relaxed)};
  }

  /// Marks a callback as running, on this thread, while the object lives.
  class scope {
  public:
    scope(activity& of, const std::type_info& callback) noexcept : of_(of), outer_(current_) {
      current_ = &of;
      of_.callback_.store(&callback, std::memory_order_relaxed);
      of_.begun_.store(of_.begun_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }
    ~scope() {
      of_.callback_.store(nullptr, std::memory_order_relaxed);
      current_ = outer_;
    }
    scope(const scope&) = delete;
    scope& operator=(const scope&) = delete;

  private:
    activity& of_;
    activity* outer_;
  };

  /// Names the message that an actor handles while the object lives. Does nothing on threads that
  /// are not watched.
  class message_scope {
  public:
    explicit message_scope(const std::type_info& message) noexcept : of_(current_) {
      if (of_)
        of_->message_.store(&message, std::memory_order_relaxed);
    }
    ~message_scope() {
      if (of_)
        of_->message_.store(nullptr, std::memory_order_relaxed);
    }
    message_scope(const message_scope&) = delete;
    message_scope& operator=(const message_scope&) = delete;

  private:
    activity* of_;
  };

private:
  static thread_local activity* current_; // the one whose callback runs on this thread

  std::atomic<std::uint64_t> begun_ = 0;
  std::atomic<const std::type_info*> callback_ = nullptr;
  std::atomic<const std::type_info*> message_ = nullptr;
};

} // namespace millrace
