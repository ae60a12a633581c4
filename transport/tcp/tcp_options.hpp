// The options of the tcp driver: the section `tcp` of the configuration sets them.
#pragma once

#include <millrace/config/keys.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::transport {

struct tcp_options {
  /// Numeric addresses at which to accept streams, for example on a network for bulk bytes only.
  /// They are announced to every peer. Port 0: any. Empty: streams come in through the listener of
  /// the channels.
  std::vector<std::string> listen;
  /// Streams for each peer; the first one carries small transfers. Both sides use the smaller
  /// number.
  std::uint32_t streams = 4;
  std::uint32_t io_threads = 2;                // they serve all streams but the first ones
  std::uint64_t chunk_bytes = 1u << 20;        // the bytes of one request
  std::uint64_t small_bytes_max = 64u << 10;   // transfers up to this size take the first stream
  std::uint32_t requests_max = 64;             // chunks requested on one stream at a time
  std::uint64_t inflight_bytes_max = 4u << 20; // on one stream; one chunk at least
  std::uint32_t transfers_max = 65536; // waiting or running for each peer; more are answered `busy`
  std::uint32_t connect_timeout_ms = 5000;   // one attempt, without its admission
  std::uint32_t admission_timeout_ms = 5000; // the time from the first byte to an admitted stream
  // A stream that moves no byte for this long while some are due counts as lost.
  std::uint32_t stall_timeout_ms = 10000;
  // Time before a lost stream is opened again. It doubles after each failure.
  std::uint32_t backoff_min_ms = 50;
  std::uint32_t backoff_max_ms = 2000;
  std::uint32_t attempts_max = 3;      // streams that may break while they carry one chunk
  std::uint32_t keepalive_ms = 15'000; // idle time before the kernel probes the other end; 0: never
  std::uint64_t send_buffer_bytes = 0; // a socket's; 0: the kernel decides
  std::uint64_t receive_buffer_bytes = 0;
  std::uint32_t admissions_max = 256;           // under way at a time
  std::uint32_t admissions_per_source_max = 64; // under way from one address
  bool checksum = false;                        // CRC32C of every chunk; if either side wants it
  bool encrypt = false;                         // TLS 1.3 on every stream; if either side wants it
};

} // namespace millrace::transport

namespace millrace::config {
template <>
key_table<transport::tcp_options> keys_of();
}
