// The keys of the section `tcp`.
#include <millrace/core/digest.hpp>
#include <millrace/core/durations.hpp>
#include <millrace/transport/tcp/tcp_options.hpp>

#include <array>

namespace millrace::config {

template <>
key_table<transport::tcp_options> keys_of() {
  using o = transport::tcp_options;
  static constexpr auto rows = std::to_array<bound_key<o>>({
    key<&o::listen>(expert(plain(
      "listen", key_type::endpoints,
      "addresses of a network of its own for bulk data, which every peer is told; port 0: any "
      "port. "
      "Without them streams connect to the ports of the control connections"))),
    key<&o::streams>(expert(
      count("streams", 1, 64, "streams to each peer; the smaller number of both sides applies"))),
    key<&o::io_threads>(
      expert(count("io_threads", 1, 64, "threads of all streams except the first of each peer"))),
    key<&o::chunk_bytes>(expert(size(
      "chunk", digest_block_bytes, 64 * mib,
      "part of a transfer that one stream moves at a time"))),
    key<&o::small_bytes_max>(expert(size(
      "small_max", 0, mib,
      "transfers up to this size use the first stream, where no large transfer delays them"))),
    key<&o::requests_max>(
      expert(count("requests_max", 1, 4'096, "chunks requested on one stream at a time"))),
    key<&o::inflight_bytes_max>(expert(size(
      "inflight_max", digest_block_bytes, gib,
      "bytes requested on one stream at a time; at least one chunk"))),
    key<&o::transfers_max>(expert(count(
      "transfers_max", 1, 1u << 24,
      "transfers that wait or run with each peer; more get the answer `busy`"))),
    key<&o::connect_timeout_ms>(
      expert(ms("connect_timeout", 1, day_ms, "longest wait for the connection of a stream"))),
    key<&o::admission_timeout_ms>(
      expert(ms("admission_timeout", 1, day_ms, "time in which a new stream must be admitted"))),
    key<&o::stall_timeout_ms>(expert(ms(
      "stall_timeout", 1, day_ms,
      "a stream counts as lost when, within this time, neither its oldest chunk ends nor 64 KiB of "
      "it arrive. Bytes of other transfers extend the time, up to four times `tcp.inflight_max`"))),
    key<&o::backoff_min_ms>(
      expert(ms("backoff_min", 1, day_ms, "first wait before a lost stream is opened again"))),
    key<&o::backoff_max_ms>(
      expert(ms("backoff_max", 1, day_ms, "longest such wait; the wait doubles until then"))),
    key<&o::attempts_max>(expert(
      count("attempts_max", 1, 100, "streams that may break during one chunk before it fails"))),
    key<&o::keepalive_ms>(expert(ms(
      "keepalive", 0, 32'767 * second_ms,
      "idle time before the kernel probes the other end, rounded up to seconds; 0: never"))),
    key<&o::send_buffer_bytes>(
      expert(size("send_buffer", 0, gib, "send buffer of a socket; 0: the kernel decides"))),
    key<&o::receive_buffer_bytes>(
      expert(size("receive_buffer", 0, gib, "receive buffer of a socket; 0: the kernel decides"))),
    key<&o::admissions_max>(
      expert(count("admissions_max", 1, 65'536, "streams that are being admitted at a time"))),
    key<&o::admissions_per_source_max>(expert(count(
      "admissions_per_source_max", 1, 65'536,
      "streams from one address that are being admitted at a time; IPv6 addresses with the same "
      "first 64 bits count as one"))),
    key<&o::checksum>(
      expert(boolean("checksum", "CRC32C of every chunk; it applies if either side wants it"))),
    key<&o::encrypt>(
      expert(boolean("encrypt", "TLS 1.3 on every stream; it applies if either side wants it"))),
  });
  return {rows, [](const o& options) -> std::optional<misfit> {
            if (options.backoff_min_ms <= options.backoff_max_ms)
              return {};
            return misfit{"backoff_min", "must not be above", "backoff_max"};
          }};
}

} // namespace millrace::config
