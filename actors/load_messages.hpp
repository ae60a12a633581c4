// The messages that services share when they load tensors into a caller's memory. They hold
// descriptors only.
#pragma once

#include <millrace/actors/service.hpp>
#include <millrace/core/bulk_handle.hpp>
#include <millrace/core/inspect.hpp>
#include <millrace/core/kept_blocks.hpp>
#include <millrace/core/model.hpp>
#include <millrace/core/receipts.hpp>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace millrace::actors {

/// One tensor, or a part of it, as the caller expects it.
struct selection {
  tensor_desc expected; // name, dtype, and the shape of the bytes that arrive
  bool rows = false;    // a range along the first dimension instead of the whole tensor
  std::uint64_t first_row = 0;
  // A box: the first index in each dimension; its extents are those of `expected`. Empty: none.
  // Older services do not read this field, so such a selection also asks for rows: for the same
  // bytes where they are rows, else from `no_row` on, which no tensor has. So they refuse it.
  std::vector<std::uint64_t> offsets = {};

  static constexpr auto no_row = std::numeric_limits<std::uint64_t>::max();

  friend bool operator==(const selection&, const selection&) = default;
};
MILLRACE_INSPECT(selection, x.expected, x.rows, x.first_row, x.offsets)

/// The state of a group by which a client asks a provider for a model. Number 0: the client has
/// asked no other provider, and an answer must hold without them.
struct placement_claim {
  std::string group;        // empty, from older clients: the provider's
  std::uint64_t number = 0; // the group's view under which all providers were asked

  friend bool operator==(const placement_claim&, const placement_claim&) = default;
};
MILLRACE_INSPECT(placement_claim, x.group, x.number)

/// Loads the selected tensors into `target`, one after the other.
struct load_request {
  std::string model;
  std::uint64_t version = 0; // 0: the newest
  std::vector<selection> selections;
  bulk_handle target; // empty: send the bytes in the reply (few only)
  std::uint32_t timeout_ms = 0;
  asker from = {};
  placement_claim by = {};
};
MILLRACE_INSPECT(load_request, x.model, x.version, x.selections, x.target, x.timeout_ms, x.by)

/// The receipt as it travels. The user's bytes do not: the client asks for them, see
/// `restore_request::extra`.
struct load_reply : load_receipt {
  small_bytes eager; // what was loaded, for a request without a target

  friend bool operator==(const load_reply&, const load_reply&) = default;
};
MILLRACE_INSPECT(
  load_reply, x.model, x.version, x.size_bytes, x.provider, x.verified, x.driver, x.times, x.eager,
  x.stored_at_ns, x.extra_bytes)

} // namespace millrace::actors
