// The messages between two staged drivers, sent over their channel. Used by the asking and the
// lending side.
#pragma once

#include <millrace/core/bulk_handle.hpp>
#include <millrace/core/codec.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::transport::staged {

/// These values travel on the wire: append new ones, never renumber.
enum class message_kind : std::uint8_t {
  hello = 1,
  stage = 2,
  staged = 3,
  commit = 4,
  committed = 5,
  release = 6,
};
constexpr std::string_view driver_of(message_kind) noexcept { return "staged"; }

inline constexpr std::uint32_t protocol_version = 1;
inline constexpr std::uint64_t chunk_bytes_most = 1u << 30;
inline constexpr std::uint32_t chunks_most = 4096;
inline constexpr std::size_t ranges_max = 4096; // per chunk

/// Announces the most that the peer may ask for at one time.
struct hello {
  std::uint32_t version = protocol_version;
  std::uint64_t chunk_bytes = 0;
  std::uint32_t chunks_max = 0;
};

/// Asks for a chunk for these ranges of a region. For a read, the owner fills the chunk with them.
struct stage {
  std::uint64_t number = 0;
  std::uint64_t region = 0;
  region_key key;
  std::uint8_t dir = 0;         // a `direction`, seen from the sender
  std::uint64_t region_end = 0; // where the whole transfer ends in the region
  std::vector<segment> ranges;
};

/// Lends a chunk: a host region that begins with the ranges, one after the other.
struct staged {
  std::uint64_t number = 0;
  std::uint8_t code = 0; // an `errc`; if it is not 0, there is no chunk
  std::string detail;
  std::uint64_t region = 0;
  region_key key;
};

/// Says that the chunk is full: the owner copies the bytes to the ranges and takes the chunk back.
struct commit {
  std::uint64_t number = 0;
};

struct committed {
  std::uint64_t number = 0;
  std::uint8_t code = 0; // an `errc`
  std::string detail;
};

/// Gives the chunk back.
struct release {
  std::uint64_t number = 0;
  bool broken = false; // a transfer with it failed, so a device may still touch it
};

/// Checks what decoding cannot: bounds, directions, and that the ranges fit in a chunk of
/// `chunk_bytes`.
/// Errors:  `protocol_error`; `unsupported_version` for a hello of another version.
[[nodiscard]] status check(const hello& m);
[[nodiscard]] status check(const stage& m, std::uint64_t chunk_bytes);

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, hello& x) {
  return f(x.version, x.chunk_bytes, x.chunks_max);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, stage& x) {
  return f(x.number, x.region, x.key, x.dir, x.region_end, x.ranges);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, staged& x) {
  return f(x.number, x.code, x.detail, x.region, x.key);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, commit& x) {
  return f(x.number);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, committed& x) {
  return f(x.number, x.code, x.detail);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, release& x) {
  return f(x.number, x.broken);
}

} // namespace millrace::transport::staged
