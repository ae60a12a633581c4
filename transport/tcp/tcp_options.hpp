// The options of the tcp driver: the section `tcp` of the configuration sets them.
#pragma once

#include <millrace/config/keys.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace millrace::transport {

struct tcp_options {
  /// Numeric addresses to accept streams at, told to every peer: a network of its own for bulk, say. Port 0: any.
  /// Empty: streams come in through the listener of the channels.
  std::vector<std::string> listen;
  /// Per peer; the first carries small transfers. Both sides keep to the smaller number.
  std::uint32_t streams = 4;
  std::uint32_t io_threads = 2;                // for all streams but the first ones
  std::uint64_t chunk_bytes = 1u << 20;        // what one turn moves
  std::uint64_t small_bytes_max = 64u << 10;   // transfers up to it take the first stream
  std::uint32_t requests_max = 64;             // chunks asked for on one stream at a time
  std::uint64_t inflight_bytes_max = 4u << 20; // of a stream; one chunk at least
  std::uint32_t transfers_max = 65536;     // waiting or running, per peer; more are answered `busy`
  std::uint32_t connect_timeout_ms = 5000; // for one attempt, admission excluded
  std::uint32_t admission_timeout_ms = 5000; // from the first byte to an admitted stream
  std::uint32_t stall_timeout_ms =
    10000; // without a byte while some are due: the stream counts as lost
  std::uint32_t backoff_min_ms =
    50; // before a lost stream is opened again; doubles after each failure
  std::uint32_t backoff_max_ms = 2000;
  std::uint32_t attempts_max = 3;      // streams that may break under one chunk
  std::uint32_t keepalive_ms = 15'000; // idle time before the kernel probes the other end; 0: never
  std::uint64_t send_buffer_bytes = 0; // of a socket; 0: the kernel decides as it goes
  std::uint64_t receive_buffer_bytes = 0;
  std::uint32_t admissions_max = 256;           // under way at a time
  std::uint32_t admissions_per_source_max = 64; // of one address
  bool checksum = false;                        // CRC32C of every chunk; if either side wants it
  bool encrypt = false;                         // TLS 1.3 on every stream; if either side wants it
};

} // namespace millrace::transport

namespace millrace::config {
template <>
key_table<transport::tcp_options> keys_of();
}
