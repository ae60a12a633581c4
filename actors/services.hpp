// The list of every service of the product. Fuzzing and tests of the wire go through it.
#pragma once

#include <millrace/actors/broadcast/group_messages.hpp>
#include <millrace/actors/checkpoint/checkpoint_messages.hpp>
#include <millrace/actors/loader/data_messages.hpp>
#include <millrace/actors/loader/stream_messages.hpp>
#include <millrace/actors/node/node_messages.hpp>
#include <millrace/actors/store/store_messages.hpp>

#include <cstddef>
#include <type_traits>

namespace millrace::actors {

/// Finds the first of these services that has the request.
template <class Request, class First, class... Rest>
struct service_with : service_with<Request, Rest...> {};

template <class Request, class First, class... Rest>
requires(First::template has<Request>) struct service_with<Request, First, Rest...>
  : std::type_identity<First> {
};

template <class... Services>
class service_list {
public:
  /// The service that has this request.
  template <class Request>
  using service_of = typename service_with<Request, Services...>::type;

  /// Runs `f.template operator()<Service>()` for each service.
  template <class F>
  static void each(F&& f) {
    (f.template operator()<Services>(), ...);
  }

  /// Returns true if no number belongs to methods of two services.
  static consteval bool numbers_are_apart() {
    std::uint16_t first[] = {Services::first_number...}, end[] = {Services::end_number...};
    for (std::size_t i = 0; i < sizeof...(Services); ++i)
      for (std::size_t j = 0; j < i; ++j)
        if (first[i] < end[j] && first[j] < end[i])
          return false;
    return true;
  }
};

using all_services = service_list<
  store_service, node_service, checkpoint_service, data_service, stream_service, group_service>;
static_assert(all_services::numbers_are_apart());

} // namespace millrace::actors
