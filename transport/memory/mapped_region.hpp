// Regions that are read, or written, where they lie, without a message for each copy.
// Drivers make them of regions that their owner finds here.
#pragma once

#include <millrace/core/bulk_handle.hpp>
#include <millrace/core/status.hpp>
#include <millrace/transport/memory/arena.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace millrace::transport {

/// Returns how an arena is shared whose regions peers map with this right.
constexpr arena_sharing sharing_for(access_mode how) noexcept {
  return how == access_mode::read ? arena_sharing::read_only : arena_sharing::read_write;
}

/// A region of another process of this host, or of this process, that can be read here. It stays
/// while a copy of `hold` lives, whatever becomes of its owner.
struct mapped_region {
  const std::byte* data = nullptr;
  std::uint64_t size_bytes = 0;
  std::shared_ptr<const void> hold = nullptr;
  std::byte* writable = nullptr; // the same bytes, if the region was mapped for writing
};

/// Where a region of this process lies that peers may map.
struct mappable_region {
  arena_place place;
  std::uint64_t size_bytes = 0;

  std::byte* data() const noexcept { return place.in->data() + place.offset; }
};

/// Finds a region that is exposed for `how`, for the peer that wants to map it.
/// Errors:  those of `find_region`; `unsupported` if the region is not one dense run in an arena
///          that peers may map so. Threads: any.
result<mappable_region> find_mappable(std::uint64_t number, const region_key& key, access_mode how);

} // namespace millrace::transport
