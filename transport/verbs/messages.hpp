// The messages between two verbs drivers, sent over their channel. Used by both sides of
// `peer_link`.
#pragma once

#include <millrace/core/bulk_handle.hpp>
#include <millrace/core/codec.hpp>
#include <millrace/transport/memory/memory_distance.hpp>
#include <millrace/transport/verbs/gid_rule.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::transport::verbs {

/// These values travel on the wire: append new ones, never renumber.
enum class message_kind : std::uint8_t {
  hello = 1,
  connect = 2,
  ready = 3,
  ask = 4,
  granted = 5,
  withdrawn = 6,
  lost = 7,
};
constexpr std::string_view driver_of(message_kind) noexcept { return "verbs"; }

inline constexpr std::uint32_t protocol_version = 1;
inline constexpr std::size_t rails_max = 64;

/// A token that a side sends with a request of rdma_cm. It proves that the side got the token over
/// the channel.
struct cm_token_tag;
using cm_token = id128<cm_token_tag>;

/// One port as the other side must know it.
struct rail_info {
  gid_bytes gid{};
  bool infiniband = false;
  std::uint32_t lid = 0;
  std::uint32_t mtu = 0; // bytes
  std::uint32_t reads_max = 0;
  std::uint64_t message_bytes_max = 0;
  bool cm = false; // connect its queue pairs by rdma_cm, if the other port wants that, too
};

/// Announces the sender's rails. Both sides compute the same pairs from both lists.
struct hello {
  std::uint32_t version = protocol_version;
  std::vector<rail_info> rails;
};

/// Announces the sender's queue pair for a pair of rails. A higher generation replaces the earlier
/// queue pair.
struct connect {
  std::uint32_t pair = 0;
  std::uint32_t generation = 0;
  std::uint32_t number = 0; // the number of the queue pair
  std::uint32_t psn = 0;
  rail_info rail;
  /// For rdma_cm: the address on which the passive side listens, "10.0.0.2:47000", and the token.
  /// The passive side is the one that accepted the channel.
  std::string cm_address;
  cm_token token;
};

/// Says that the sender's queue pair can receive.
struct ready {
  std::uint32_t pair = 0;
  std::uint32_t generation = 0;
};

/// Says that the sender's end is gone. Without this message the other side would not notice while
/// it sends nothing.
struct lost {
  std::uint32_t pair = 0;
  std::uint32_t generation = 0;
};

/// Asks for the keys of a region.
struct ask {
  std::uint64_t number = 0;
  std::uint64_t region = 0;
  region_key key;
  std::uint8_t dir = 0; // a `direction`, seen from the sender
};

/// A queue pair over which the keys of a grant are valid.
struct granted_pair {
  std::uint32_t pair = 0;
  std::uint32_t generation = 0;
  distance way = distance::same_node; // from the owner's device to the memory
};

/// Dense memory behind `length` bytes of the region, with one key for each pair.
struct granted_range {
  std::uint64_t length = 0;
  std::uint64_t address = 0;
  std::vector<std::uint32_t> keys;
};

/// Answers `ask`. The ranges follow each other from the region's first byte.
struct granted {
  std::uint64_t number = 0;
  std::uint8_t code = 0; // an `errc`
  std::string detail;
  std::uint64_t region_bytes = 0;
  std::vector<granted_pair> pairs;
  std::vector<granted_range> ranges;
};

/// Says that the keys of a region are no longer valid.
struct withdrawn {
  std::uint64_t region = 0;
};

/// Checks what decoding cannot: counts, limits of devices, and that the ranges make up the region.
/// Errors:  `protocol_error`; `unsupported_version` for a hello of another version.
[[nodiscard]] status check(const hello& m);
[[nodiscard]] status check(const connect& m);
[[nodiscard]] status check(const ready& m);
[[nodiscard]] status check(const lost& m);
[[nodiscard]] status check(const ask& m);
[[nodiscard]] status check(const granted& m);
[[nodiscard]] inline status check(const withdrawn&) { return {}; }

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, rail_info& x) {
  return f(x.gid, x.infiniband, x.lid, x.mtu, x.reads_max, x.message_bytes_max, x.cm);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, hello& x) {
  return f(x.version, x.rails);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, connect& x) {
  return f(x.pair, x.generation, x.number, x.psn, x.rail, x.cm_address, x.token);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, ready& x) {
  return f(x.pair, x.generation);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, lost& x) {
  return f(x.pair, x.generation);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, ask& x) {
  return f(x.number, x.region, x.key, x.dir);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, granted_pair& x) {
  return f(x.pair, x.generation, x.way);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, granted_range& x) {
  return f(x.length, x.address, x.keys);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, granted& x) {
  return f(x.number, x.code, x.detail, x.region_bytes, x.pairs, x.ranges);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, withdrawn& x) {
  return f(x.region);
}

} // namespace millrace::transport::verbs
