// The messages between two tcp drivers, sent over their channel. Used by both sides of `peer_link`.
#pragma once

#include <millrace/transport/tcp/stream_proof.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::transport::tcp {

/// These values travel on the wire: append new ones, never renumber.
enum class message_kind : std::uint8_t { announce = 1, lost = 2, gone = 3 };
constexpr std::string_view driver_of(message_kind) noexcept { return "tcp"; }

/// Says how to reach the sender, and its bounds.
struct announce {
  group_id group{};                   // for the proofs of streams towards the sender
  std::vector<std::string> addresses; // numeric; an unspecified one stands for that of the channel
  bool by_channel_address = false;    // streams may come to the channel's own address
  std::uint32_t streams = 0;
  std::uint32_t requests_max = 0; // at a time on one stream
  std::uint64_t chunk_bytes = 0;  // the bytes of one request
  bool checksum = false;
  bool encrypt = false;
};

/// Says that the sender has closed a stream. The receiver closes it, too, so that the sender may
/// request its chunks again.
struct lost {
  std::uint64_t serial = 0;
};

/// Says that nothing which the stream carried will touch memory of the sender any more.
struct gone {
  std::uint64_t serial = 0;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, announce& x) {
  return f(
    x.group, x.addresses, x.by_channel_address, x.streams, x.requests_max, x.chunk_bytes,
    x.checksum, x.encrypt);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, lost& x) {
  return f(x.serial);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, gone& x) {
  return f(x.serial);
}

inline constexpr std::size_t announced_addresses_max = 16;

} // namespace millrace::transport::tcp
