// Why actors end, and what becomes of the request whose handler throws. Used by the actors of nodes
// and providers, the staging manager, and sessions.
#pragma once

#include <millrace/actors/vocabulary.hpp>
#include <millrace/core/activity.hpp>
#include <millrace/core/log.hpp>
#include <millrace/core/planted_fault.hpp>

#include <caf/actor_cast.hpp>
#include <caf/intrusive/task_result.hpp>
#include <caf/mailbox_element.hpp>
#include <caf/make_message.hpp>
#include <caf/response_promise.hpp>
#include <caf/system_messages.hpp>

#include <exception>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace millrace::actors {

/// Returns the text of an exception.
std::string what_of(const std::exception_ptr& thrown);

/// Returns the error of a handler that has thrown: "WHO failed in MESSAGE: WHAT".
status failure_of(std::string_view who, std::string_view message, const std::exception_ptr& thrown);

/// Returns, and logs, why an actor ends by an exception: what its handler has failed with, or else
/// what was thrown outside of handlers. Called by CAF's exception handlers.
status ending_of(const status& of_handler, std::string_view who, const std::exception_ptr& thrown);

/// Returns the reason for which an actor ended. Ok: it was ended in order.
status reason_of(const caf::down_msg& down);

/// Returns why a connection ended: `why`, or an error that says that it was closed.
status loss_of(status why);

/// Answers requests from the mailbox of an actor that ends. CAF walks the mailbox with it.
struct refusal_of_unread {
  caf::error why;
  caf::execution_unit* host;

  void operator()(const caf::mailbox_element& unread) const {
    if (unread.sender && unread.mid.is_request())
      unread.sender->enqueue(nullptr, unread.mid.response_id(), caf::make_message(why), host);
  }
  template <class Key, class Queue, class... Inner>
  caf::intrusive::task_result operator()(const Key&, const Queue&, const Inner&... inner) const {
    (*this)(inner...);
    return caf::intrusive::task_result::resume;
  }
};

/// Closes the mailbox of an actor that ends and answers the requests in it, which CAF would answer
/// without the reason. Called in `on_exit`.
template <class Self>
void refuse_unread(Self& self, const status& why) {
  refusal_of_unread refuse{to_caf_error(why), self.context()};
  self.mailbox().close();
  self.acquire();
  while (self.mailbox().queue().new_round(1000, refuse).consumed_items > 0) {
  }
}

/// Runs `f`, the handler of the message that `self` is handling. If `f` throws, `failed` makes the
/// error from the exception, which then goes on.
///
/// *Problem*: a handler that throws may have made the promise of its answer. CAF then answers
/// nothing, and who asked waits until its deadline. So the answer is sent from here.
template <class Self, class F, class Failed>
auto run_handler(Self& self, const std::type_info& message, F f, Failed failed) {
  activity::message_scope doing{message};
  auto& element = *self.current_mailbox_element();
  auto id = element.mid;
  caf::strong_actor_ptr asker;
  if (id.is_request())
    asker = element.sender;
  try {
    MILLRACE_PLANTED_FAULT(message);
    return f();
  } catch (...) {
    status why = failed(std::current_exception());
    // A promise takes the sender over.
    if (asker && !element.sender)
      caf::response_promise{caf::actor_cast<caf::strong_actor_ptr>(&self), std::move(asker), {}, id}
        .deliver(to_caf_error(why));
    throw;
  }
}

/// Runs `f` as `run_handler` does, for an actor that goes on. If `f` throws, the error is logged
/// and is the answer. `who()` is called only then. A handler that answers nothing returns whether
/// it came to its end.
template <class Self, class F, class Who>
auto survive_handler(Self& self, const std::type_info& message, F f, Who who) {
  auto handle = [&] {
    if constexpr (std::is_void_v<decltype(f())>)
      return f(), true;
    else
      return f();
  };
  using outcome = decltype(handle());
  status bad;
  try {
    return run_handler(self, message, handle, [&](const std::exception_ptr& thrown) {
      return bad = failure_of(who(), name_of(message), thrown);
    });
  } catch (...) {
    log().error("{}", bad.detail());
    if constexpr (std::is_same_v<outcome, bool>)
      return false;
    else
      return outcome{to_caf_error(bad)};
  }
}

} // namespace millrace::actors
