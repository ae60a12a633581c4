// The bulk handle: names memory that another process may read or write. Travels in messages.
#pragma once

#include <millrace/core/ids.hpp>
#include <millrace/core/inspect.hpp>

#include <cstdint>
#include <optional>
#include <vector>

namespace millrace {

/// A range of an exposed region. The offset counts from the region's first byte.
struct segment {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;

  friend bool operator==(const segment&, const segment&) = default;
};

/// The access that the holder of a handle has to the memory.
enum class access_mode : std::uint8_t { read = 1, write = 2 };

/// Names one exposed region: its owner, its size, and the key that opens it.
///
/// A region is a *logical* run of bytes. Only the owner knows the addresses (dense or strided), so
/// a handle discloses no address and cannot name memory outside the region.
struct bulk_handle {
  peer_id owner;
  std::uint64_t region = 0;
  region_key key;
  access_mode allows = access_mode::read;
  /// The region's size. Absent in a handle that names no memory.
  std::optional<std::uint64_t> length_bytes;
  /// Says whether some of the region lies in device memory. The owner sets it; the choice of a
  /// driver depends on it.
  bool on_device = false;

  friend bool operator==(const bulk_handle&, const bulk_handle&) = default;
};

/// The size of the memory that the handle names; 0 when it names none.
inline std::uint64_t size_bytes(const bulk_handle& handle) noexcept {
  return handle.length_bytes.value_or(0);
}

template <field_inspector Inspector>
typename Inspector::result_type inspect(Inspector& f, segment& x) {
  return f(x.offset, x.length);
}

namespace detail {

/// Returns the sum of the lengths, or the largest number if it overflows. Absent without ranges.
std::optional<std::uint64_t> total_bytes(const std::vector<segment>& ranges) noexcept;

} // namespace detail

// On the wire a handle has a list of ranges, of which this version writes one, and a reserved empty
// list.
template <field_inspector Inspector>
typename Inspector::result_type inspect(Inspector& f, bulk_handle& x) {
  std::vector<segment> ranges, reserved;
  if constexpr (Inspector::reads_state)
    if (x.length_bytes)
      ranges.push_back({0, *x.length_bytes});
  auto say = [&] { return f(x.owner, x.region, x.key, x.allows, ranges, reserved, x.on_device); };
  if constexpr (Inspector::writes_state) {
    auto outcome = say();
    x.length_bytes = detail::total_bytes(ranges);
    return outcome;
  } else {
    return say();
  }
}

} // namespace millrace
