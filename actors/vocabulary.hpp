// The only door to CAF's headers: typed interfaces and what crosses between `status` and `caf::error`.
#pragma once

#include <millrace/actors/service.hpp>
#include <millrace/core/status.hpp>

#include <caf/error.hpp>
#include <caf/fwd.hpp>
#include <caf/typed_actor.hpp>

#include <functional>

CAF_ERROR_CODE_ENUM(millrace::errc, "millrace")

namespace millrace::actors {

namespace detail {

template <class... Methods>
struct typed_interface {
  using type = caf::typed_actor<
    typename caf::replies_to<typename Methods::request>::template with<typename Methods::reply>...>;
};

} // namespace detail

/// The actor of a service, here or elsewhere.
template <class Service>
using actor_of = typename Service::template apply<detail::typed_interface>::type;

/// A private message: a piece of the actor's own work that a foreign thread finished. Only the code that
/// spawned the actor can make one, since it needs the wider handle.
struct step {
  std::function<void()> run;
};

/// A connection is gone, and with it what was registered through it. From sessions of this process only.
struct peer_gone {
  asker who;
  status why;
};

caf::error to_caf_error(const status& s);
status to_status(const caf::error& e);

} // namespace millrace::actors

/// CAF never serialises or prints a message: frames are written by our own codec. Declaring messages like this spares
/// every source that sends one the compilation of CAF's serializers and printers.
template <class T>
  requires requires(const T& message) { is_message(message); }
struct caf::allowed_unsafe_message_type<T> : std::true_type {};

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(millrace::actors::step)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(millrace::actors::peer_gone)
