// Compares receipts with what was asked for. Used by the calls of a client.
#pragma once

#include <millrace/core/status.hpp>

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>

namespace millrace::runtime {

/// What a receipt must be about.
struct receipt_subject {
  std::string model;
  std::optional<std::uint64_t> version; // or step; none: whichever it has
  std::uint64_t size_bytes = 0;
};

/// Returns the receipt if it is about what was asked for.
/// Errors:  `protocol_error` that names both; the outcome's own.
template <class Receipt>
result<Receipt> check_receipt(result<Receipt> outcome, const receipt_subject& asked) {
  if (!outcome)
    return outcome;
  std::uint64_t version = 0;
  if constexpr (requires { outcome->step; })
    version = outcome->step;
  else
    version = outcome->version;
  if (
    outcome->model == asked.model && outcome->size_bytes == asked.size_bytes &&
    version == asked.version.value_or(version))
    return outcome;
  return fail(
    errc::protocol_error,
    "asked about {} bytes of model {}{}, provider {} answered about {} bytes of model {} version "
    "{}",
    asked.size_bytes, asked.model,
    asked.version ? fmt::format(" version {}", *asked.version) : std::string{}, outcome->provider,
    outcome->size_bytes, outcome->model, version);
}

} // namespace millrace::runtime
