// The bounds of the bounds.
#include <millrace/core/digest.hpp>
#include <millrace/net/socket/socket_address.hpp>
#include <millrace/transport/option_bounds.hpp>
#include <millrace/transport/tcp/tcp_options.hpp>

namespace millrace::transport {

status check(const tcp_options& o) {
  const option_bound bounds[] = {
    {"streams", o.streams, 1, 64},
    {"io_threads", o.io_threads, 1, 64},
    {"chunk_bytes", o.chunk_bytes, digest_block_bytes, 64u << 20},
    {"small_bytes_max", o.small_bytes_max, 0, 1u << 20},
    {"requests_max", o.requests_max, 1, 4096},
    {"inflight_bytes_max", o.inflight_bytes_max, digest_block_bytes, 1u << 30},
    {"transfers_max", o.transfers_max, 1, 1u << 24},
    {"connect_timeout_ms", o.connect_timeout_ms, 1, day_ms},
    {"admission_timeout_ms", o.admission_timeout_ms, 1, day_ms},
    {"stall_timeout_ms", o.stall_timeout_ms, 1, day_ms},
    {"backoff_min_ms", o.backoff_min_ms, 1, day_ms},
    {"backoff_max_ms", o.backoff_max_ms, o.backoff_min_ms, day_ms},
    {"attempts_max", o.attempts_max, 1, 100},
    {"keepalive_s", o.keepalive_s, 0, 32767},
    {"send_buffer_bytes", o.send_buffer_bytes, 0, 1u << 30},
    {"receive_buffer_bytes", o.receive_buffer_bytes, 0, 1u << 30},
    {"admissions_max", o.admissions_max, 1, 65536},
    {"admissions_per_source_max", o.admissions_per_source_max, 1, 65536}};
  if (auto bad = check_bounds("tcp", bounds); !bad.ok())
    return bad;
  for (auto& address : o.listen)
    if (auto parsed = net::socket_address::parse(address); !parsed)
      return parsed.error().within("tcp: listen");
  return {};
}

} // namespace millrace::transport
