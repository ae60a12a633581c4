// Requests that make an object: of connecting, starting a node, and registering a shard.
#pragma once

#include "handles.hpp"

#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

namespace millrace::bindings {

/// Gives the object that a request has made.
template <class Handle>
class maker {
public:
  virtual ~maker() = default;
  /// Returns the object, the first time; then null. Call it when the request has succeeded.
  virtual std::unique_ptr<Handle> take() = 0;
};

/// A request whose value becomes an object of the program. An object that is not taken ends with
/// the request, on another thread, as a released one does.
template <class T, class Handle>
class making final : public future_request<void>, public maker<Handle> {
public:
  using wrapping = std::function<std::unique_ptr<Handle>(const T&)>;

  explicit making(wrapping wrap) : wrap_(std::move(wrap)) {}
  making(const making&) = delete;
  making& operator=(const making&) = delete;
  ~making() override {
    // In a forked child nothing of the parent ends, and a thread of it may have held the lock.
    if (!made_in.is_here())
      return;
    drop();
    give_up();
  }

  void begin(const future<T>& operation) {
    promise<void> done{operation.io()};
    of = done.get_future();
    auto pass_on = [done, made = made_](const result<T>& outcome) {
      if (outcome)
        made->keep(*outcome);
      done.set(outcome ? result<void>{} : fail(outcome.error()));
    };
    // An object that was made before the cancellation counts: a batch must not get lost. The caller
    // does not have the request yet, so it cannot have cancelled.
    static_cast<void>(done.on_cancel([operation, pass_on] {
      operation.cancel();
      pass_on(operation.result());
    }));
    operation.chain(pass_on);
  }

  std::unique_ptr<Handle> take() override {
    std::lock_guard guard{made_->mutex};
    if (!made_->value)
      return nullptr;
    auto taken = wrap_(*made_->value);
    made_->value.reset();
    return taken;
  }

private:
  // What was made and not taken. The operation may end after the request.
  struct object {
    void keep(const T& v) {
      std::lock_guard guard{mutex};
      if (std::exchange(wanted, false))
        value.emplace(v);
    }

    std::mutex mutex;
    std::optional<T> value;
    bool wanted = true; // it is kept once
  };

  // Nobody can take the object any more: a registration would wait for its place.
  void give_up() noexcept {
    try {
      if (of.valid() && !of.ready())
        of.cancel();
    } catch (const std::exception&) {
      // The object ends when it is made.
    }
  }

  void drop() noexcept {
    std::optional<T> left;
    {
      std::lock_guard guard{made_->mutex};
      made_->wanted = false;
      left.swap(made_->value);
    }
    if (!left)
      return;
    try {
      end_aside(std::make_shared<T>(std::move(*left)));
    } catch (const std::bad_alloc&) {
      // It ends on this thread.
    }
  }

  findings read_value() const override { return {}; }

  std::shared_ptr<object> made_ = std::make_shared<object>();
  wrapping wrap_;
};

/// Waits for what was begun, and gives the object.
template <class T, class Handle>
status await_made(const std::unique_ptr<making<T, Handle>>& begun, Handle** out) {
  auto outcome = begun->outcome();
  if (outcome.ok())
    *out = begun->take().release();
  return outcome;
}

/// The body of a function that gives the object of a request.
template <class Handle>
millrace_code give_made(
  const char* function, millrace_request* request, const char* what, Handle** out) {
  clear(out);
  return guarded(function, [&](const call& here) -> status {
    if (auto bad = here.need({{request, "request"}, {out, what}}); !bad.ok())
      return bad;
    auto* makes = dynamic_cast<maker<Handle>*>(request);
    if (!makes)
      return here.wrong("request", fmt::format("makes no {}", what));
    if (!request->made_in.is_here())
      return {
        errc::unavailable, "{}: the {} belongs to the process that forked this one; make one here",
        function, what};
    if (auto found = request->found(); !found)
      return found.error();
    auto taken = makes->take();
    if (!taken)
      return {errc::not_found, "{}: the {} was taken already", function, what};
    *out = taken.release();
    return {};
  });
}

} // namespace millrace::bindings
