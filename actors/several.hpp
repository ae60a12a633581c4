// Several small requests in one message, and their outcomes. Clients and providers send them.
#pragma once

#include <millrace/actors/service.hpp>
#include <millrace/core/inspect.hpp>
#include <millrace/core/status.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace millrace::actors {

/// The most requests that one message carries.
inline constexpr std::size_t requests_together_max = 256;

/// Each is as it would be alone, but for its timeout, which is not used.
template <class Request>
struct several {
  std::vector<Request> items;
  std::uint32_t timeout_ms = 0;
  asker from = {};
};

template <class Request>
constexpr void is_message(const several<Request>&) {}

template <field_inspector Inspector, class Request>
typename Inspector::result_type inspect(Inspector& f, several<Request>& x) {
  return f(x.items, x.timeout_ms);
}

/// A receipt, or why there is none.
template <class Receipt>
struct outcome_of {
  std::uint8_t code = 0; // an `errc`; if it is not 0, the receipt is empty
  std::string detail = {};
  Receipt receipt = {};

  static outcome_of from(result<Receipt> outcome) {
    if (outcome)
      return {.receipt = std::move(*outcome)};
    return {static_cast<std::uint8_t>(outcome.error().code()), outcome.error().detail()};
  }

  result<Receipt> take() {
    if (code != 0)
      return fail(errc_from_wire(code), std::move(detail));
    return std::move(receipt);
  }

  friend bool operator==(const outcome_of&, const outcome_of&) = default;
};

template <field_inspector Inspector, class Receipt>
typename Inspector::result_type inspect(Inspector& f, outcome_of<Receipt>& x) {
  return f(x.code, x.detail, x.receipt);
}

/// The answer to several requests, in their order.
template <class Receipt>
struct outcomes_of {
  std::vector<outcome_of<Receipt>> items;

  friend bool operator==(const outcomes_of&, const outcomes_of&) = default;
};

template <class Receipt>
constexpr void is_message(const outcomes_of<Receipt>&) {}

template <field_inspector Inspector, class Receipt>
typename Inspector::result_type inspect(Inspector& f, outcomes_of<Receipt>& x) {
  return f(x.items);
}

} // namespace millrace::actors
