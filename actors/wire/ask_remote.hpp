// Asks an actor of another process by frames. Used by clients.
#pragma once

#include <millrace/actors/supervision.hpp>
#include <millrace/actors/wire/envelope.hpp>
#include <millrace/actors/wire/remote_node.hpp>
#include <millrace/core/status.hpp>

#include <atomic>
#include <exception>
#include <memory>
#include <string>
#include <utility>

namespace millrace::actors {

/// Asks the actor that serves `Service` for `target` (a provider's name; empty for the node itself)
/// in the process behind `node`. A time that the request names goes before `timeout_ms`. `done`
/// runs once, on any thread, maybe before this returns.
/// Errors:  those of the actor; those of `remote_node`, which name the address; `protocol_error`.
/// Threads: any.
template <class Service, class Request, class Done>
void ask_remote(
  remote_node& node, const std::string& target, const Request& request, std::uint32_t timeout_ms,
  Done done) {
  if constexpr (requires { request.timeout_ms; })
    if (request.timeout_ms > 0)
      timeout_ms = request.timeout_ms;
  using outcome = result<typename Service::template reply_of<Request>>;
  // An exception may come when the frame has been sent.
  struct once {
    explicit once(Done d) : done(std::move(d)) {}

    Done done;
    std::atomic<bool> is_done = false;

    void operator()(outcome r) {
      if (!is_done.exchange(true))
        done(std::move(r));
    }
  };
  auto answer = std::make_shared<once>(std::move(done));
  try {
    MILLRACE_PLANTED_FAULT(typeid(Request));
    frame_buffer frame;
    append_request<Service>(frame.bytes(), target, request, timeout_ms);
    node.ask(frame.bytes(), timeout_ms, [answer](raw_reply raw) {
      (*answer)(
        raw ? decode_reply<typename outcome::value_type>(*raw) : outcome{fail(raw.error())});
    });
  } catch (...) {
    (*answer)(fail(
      failure_of("asking " + node.address(), name_of(typeid(Request)), std::current_exception())));
  }
}

} // namespace millrace::actors
