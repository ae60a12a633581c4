// Names memory that another process may move bytes into or out of. Travels in messages.
#pragma once

#include <millrace/core/ids.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace {

/// A range of an exposed region, counted from the region's first byte.
struct segment {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;

  friend bool operator==(const segment&, const segment&) = default;
};

/// What the holder of a handle may do with the memory.
enum class access_mode : std::uint8_t { read = 1, write = 2 };

/// What one driver needs beyond the region's key (an rkey per NIC, say).
struct driver_key {
  std::string driver;
  std::vector<std::uint8_t> blob;

  friend bool operator==(const driver_key&, const driver_key&) = default;
};

/// Who owns the memory, which parts of it, and the keys that open it.
///
/// A region is a *logical* run of bytes: the owner alone knows at which addresses (dense or strided)
/// they lie, so a handle discloses no address and cannot name memory outside the region.
struct bulk_handle {
  peer_id owner;
  std::uint64_t region = 0;
  region_key key;
  access_mode allows = access_mode::read;
  std::vector<segment> segments;
  std::vector<driver_key> driver_keys;
  /// Some of it lies in memory of a device; which drivers are worth a try follows from that. The owner decides.
  bool on_device = false;

  friend bool operator==(const bulk_handle&, const bulk_handle&) = default;
};

/// Sum of the segments' lengths; saturates at the largest number.
std::uint64_t size_bytes(const bulk_handle& handle) noexcept;

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, segment& x) {
  return f(x.offset, x.length);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, driver_key& x) {
  return f(x.driver, x.blob);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, bulk_handle& x) {
  return f(x.owner, x.region, x.key, x.allows, x.segments, x.driver_keys, x.on_device);
}

} // namespace millrace
