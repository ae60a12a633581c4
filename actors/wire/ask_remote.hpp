// Asks an actor of another process by frames. Used by clients.
#pragma once

#include <millrace/actors/supervision.hpp>
#include <millrace/actors/wire/envelope.hpp>
#include <millrace/actors/wire/remote_node.hpp>
#include <millrace/core/status.hpp>

#include <exception>
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
  using reply = typename Service::template reply_of<Request>;
  if constexpr (requires { request.timeout_ms; })
    if (request.timeout_ms > 0)
      timeout_ms = request.timeout_ms;
  frame_buffer frame;
  try {
    MILLRACE_PLANTED_FAULT(typeid(Request));
    append_request<Service>(frame.bytes(), target, request, timeout_ms);
  } catch (...) {
    return done(result<reply>{fail(
      failure_of("asking " + node.address(), name_of(typeid(Request)), std::current_exception()))});
  }
  node.ask(frame.bytes(), timeout_ms, [done = std::move(done)](raw_reply raw) mutable {
    done(raw ? decode_reply<reply>(*raw) : result<reply>{fail(raw.error())});
  });
}

} // namespace millrace::actors
