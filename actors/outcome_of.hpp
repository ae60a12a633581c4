// The outcomes of several requests that one message answers. Sent by providers to clients.
#pragma once

#include <millrace/core/status.hpp>

#include <cstdint>
#include <string>
#include <utility>

namespace millrace::actors {

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

template <class Inspector, class Receipt>
typename Inspector::result_type inspect(Inspector& f, outcome_of<Receipt>& x) {
  return f(x.code, x.detail, x.receipt);
}

} // namespace millrace::actors
