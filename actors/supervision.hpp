// Why actors end, and what becomes of the request whose handler throws.
#pragma once

#include <millrace/actors/vocabulary.hpp>
#include <millrace/core/activity.hpp>
#include <millrace/core/planted_fault.hpp>

#include <caf/actor_cast.hpp>
#include <caf/mailbox_element.hpp>
#include <caf/response_promise.hpp>
#include <caf/system_messages.hpp>

#include <exception>
#include <string>
#include <utility>

namespace millrace::actors {

/// Returns the text of an exception.
std::string what_of(const std::exception_ptr& thrown);

/// Returns the reason for which an actor ended. Ok: it was ended in order.
status reason_of(const caf::down_msg& down);

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

} // namespace millrace::actors
