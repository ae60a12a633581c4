// CAF's typed interfaces of services, and the conversion between `status` and `caf::error`.
// Included by all code of this room that uses CAF.
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

/// The actor of a service, in this process or another one.
template <class Service>
using actor_of = typename Service::template apply<detail::typed_interface>::type;

/// A private message: a part of the actor's own work that another thread finished. Only the code
/// that spawned the actor can send one, since it needs the wider handle.
struct own_work {
  std::function<void()> run;
};

caf::error to_caf_error(const status& s);
status to_status(const caf::error& e);

} // namespace millrace::actors

/// CAF never serialises or prints a message, since our own codec writes frames. With this
/// declaration, the sources that send messages need not compile CAF's serializers and printers.
template <class T>
requires requires(const T& message) { is_message(message); }
struct caf::allowed_unsafe_message_type<T> : std::true_type {};

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(millrace::actors::own_work)
