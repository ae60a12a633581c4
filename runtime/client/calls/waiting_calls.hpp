// Calls of a program that wait for news, each with a deadline of its own.
// Internal, used by what follows weights; needs CAF.
#pragma once

#include <millrace/core/clock.hpp>
#include <millrace/core/future.hpp>
#include <millrace/runtime/client/calls/client_core.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <utility>

namespace millrace::runtime {

/// Calls that one piece of news answers together. A timer ends each at its deadline. Used in the
/// client's actor only.
template <class T>
class waiting_calls : public std::enable_shared_from_this<waiting_calls<T>> {
public:
  static std::shared_ptr<waiting_calls> make(std::shared_ptr<client_core> core) {
    return std::shared_ptr<waiting_calls>{new waiting_calls{std::move(core)}};
  }

  /// `late`: what the call gets at its deadline.
  void add(const promise<T>& done, time_point deadline, std::function<status()> late) {
    auto number = ++last_number_;
    auto weak = this->weak_from_this();
    auto in_actor = [weak, core = std::weak_ptr{core_}](auto work) {
      if (auto alive = core.lock())
        alive->run([weak, work] {
          if (auto self = weak.lock())
            work(*self);
        });
    };
    // It is too late if the caller has cancelled already.
    if (!done.on_cancel(
          [in_actor, number] { in_actor([number](waiting_calls& self) { self.take(number); }); }))
      return;
    auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock::now());
    auto timer = core_->runs_on()->loop()->run_after(
      static_cast<std::uint32_t>(std::max<std::int64_t>(left.count(), 0)),
      [in_actor, number, late = std::move(late)] {
        in_actor([number, late](waiting_calls& self) {
          for (auto& one : self.take(number))
            one.done.set(fail(late()));
        });
      });
    waiting_.push_back({done, number, timer});
  }

  /// Returns false if no call has taken it.
  bool answer(const T& news) {
    auto taken = false;
    for (auto& one : take_all())
      taken |= one.done.set(news);
    return taken;
  }

  void fail_all(const status& why) {
    for (auto& one : take_all())
      one.done.set(fail(why));
  }

private:
  struct call {
    promise<T> done;
    std::uint64_t number = 0, timer = 0;
  };

  explicit waiting_calls(std::shared_ptr<client_core> core) : core_(std::move(core)) {}

  std::list<call> take_all() {
    auto out = std::exchange(waiting_, {});
    for (auto& one : out)
      core_->runs_on()->loop()->cancel_timer(one.timer);
    return out;
  }

  // Returns the call of a number, or none.
  std::list<call> take(std::uint64_t number) {
    std::list<call> out;
    auto found = std::ranges::find(waiting_, number, &call::number);
    if (found == waiting_.end())
      return out;
    core_->runs_on()->loop()->cancel_timer(found->timer);
    out.splice(out.end(), waiting_, found);
    return out;
  }

  const std::shared_ptr<client_core> core_;
  std::list<call> waiting_;
  std::uint64_t last_number_ = 0;
};

} // namespace millrace::runtime
