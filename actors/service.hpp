// The declaration of a service, from which sessions, clients and fuzzing follow: its name,
// its wire numbers, and the reply to each request. See docs/adding-a-service.md.
#pragma once

#include <millrace/core/fair_shares.hpp>
#include <millrace/core/ids.hpp>
#include <millrace/core/inspect.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace millrace::actors {

/// One request that a service answers, and the reply to it.
template <class Request, class Reply>
struct method {
  using request = Request;
  using reply = Reply;
};

/// The name of a service, as a template argument.
template <std::size_t N>
struct service_name {
  consteval service_name(const char (&name)[N]) { std::copy_n(name, N, text); }
  char text[N] = {};
};

/// The messages that one kind of actor answers, in its own process and over the wire. A service
/// derives from this, so that it has a short name.
///
/// The first method has the number `First` in frames, and each other method the number after its
/// predecessor's. Append methods, never reorder them. The numbers of two services must not overlap.
template <service_name Name, std::uint16_t First, class... Methods>
struct service {
  static constexpr std::string_view name = Name.text;
  static constexpr std::uint16_t first_number = First;
  static constexpr std::uint16_t end_number = First + sizeof...(Methods);

  /// Applies a template to all methods.
  template <template <class...> class Template>
  using apply = Template<Methods...>;

  template <class Request>
  static consteval std::uint16_t number_of() {
    static_assert(
      (std::is_same_v<Request, typename Methods::request> + ... + 0) == 1,
      "the service has no method of this request, or several");
    std::uint16_t number = First;
    static_cast<void>(
      ((std::is_same_v<Request, typename Methods::request> || (++number, false)) || ...));
    return number;
  }

  template <class Request>
  static constexpr bool has = (std::is_same_v<Request, typename Methods::request> || ...);

  /// Runs `f.template operator()<Method>()` for each method, in the order of their numbers.
  template <class F>
  static void each_method(F&& f) {
    (f.template operator()<Methods>(), ...);
  }

  // Public for clang, which checks access from the place where `reply_of` is used.
  struct all : Methods... {};
  template <class Request, class Reply>
  static Reply reply_to(const method<Request, Reply>&);

  template <class Request>
  using reply_of = decltype(reply_to<Request>(all{}));
};

/// The reply to a request that only asks for something to be done.
struct done_reply {
  std::uint8_t unused = 0;

  friend bool operator==(const done_reply&, const done_reply&) = default;
};
MILLRACE_INSPECT(done_reply, x.unused)

/// The process that asks. If a request has a field `asker from`, the session through which it came
/// fills it in. The field does not travel. Nil: this process.
struct asker {
  peer_id peer;
  std::uint64_t connection = 0; // the peer's connection; its registrations end with it
  party holder = {};            // holds what the asker is given; nil: this process itself

  friend auto operator<=>(const asker&, const asker&) = default;
};

} // namespace millrace::actors
