// The bounds of the bounds.
#include <millrace/transport/option_bounds.hpp>
#include <millrace/transport/verbs/verbs_options.hpp>

#include <bit>

namespace millrace::transport {

namespace {

status wrong(const std::string& what) { return {errc::invalid_argument, "verbs: " + what}; }

} // namespace

status check(const verbs_options& o) {
  const option_bound bounds[] = {
    {"gid_index", o.gid_index.value_or(0), 0, 255},
    {"setup_threads", o.setup_threads, 1, 64},
    {"queue_depth", o.queue_depth, 4, 8192},
    {"sge_max", o.sge_max, 1, 256},
    {"inline_bytes_max", o.inline_bytes_max, 0, 4096},
    {"message_bytes_max", o.message_bytes_max, 4096, 1u << 30},
    {"inflight_bytes_max", o.inflight_bytes_max, 64u << 10, 1ull << 40},
    {"port_inflight_bytes_max", o.port_inflight_bytes_max, 64u << 10, 1ull << 40},
    {"signal_interval", o.signal_interval, 1, 4096},
    {"stripe_bytes_min", o.stripe_bytes_min, 4096, 1ull << 40},
    {"poll_us", o.poll_us, 0, 1'000'000},
    {"sleep_ms", o.sleep_ms, 1, hour_ms},
    {"connect_timeout_ms", o.connect_timeout_ms, 1, hour_ms},
    {"ack_timeout_ms", o.ack_timeout_ms, 1, hour_ms},
    {"ack_retries", o.ack_retries, 0, 6},
    {"op_timeout_ms", o.op_timeout_ms, 1, day_ms},
    {"op_retries", o.op_retries, 0, 100},
    {"probe_interval_ms", o.probe_interval_ms, 1, hour_ms},
    {"register_retry_ms", o.register_retry_ms, 1, hour_ms},
    {"cache_entries_max", o.cache_entries_max, 1, 1u << 20},
    {"cache_bytes_max", o.cache_bytes_max, 0, 1ull << 50},
    {"grants_max", o.grants_max, 1, 1u << 20},
    {"windows_max", o.windows_max, 1, 1u << 24}};
  if (auto bad = check_bounds("verbs", bounds); !bad.ok())
    return bad;
  if (o.mtu != 0 && (o.mtu < 256 || o.mtu > 4096 || !std::has_single_bit(o.mtu)))
    return wrong(
      "mtu is " + std::to_string(o.mtu) + "; it must be 256, 512, 1024, 2048, 4096 or 0");
  for (auto& device : o.devices)
    if (device.empty() || device.front() == ':' || device.back() == ':')
      return wrong("'" + device + "' is not a device such as mlx5_0 or mlx5_0:1");
  return {};
}

} // namespace millrace::transport
