// The keys of the section `verbs`.
#include <millrace/core/durations.hpp>
#include <millrace/transport/verbs/verbs_options.hpp>

#include <array>
#include <bit>

namespace millrace::config {

namespace {

using o = transport::verbs_options;

// The choices in the order of the enumeration.
constexpr key_text connect_choices[] = {"channel", "rdma_cm"};
constexpr auto rows = std::to_array<bound_key<o>>({
  key<&o::devices>(plain(
    "devices", key_type::devices,
    "the devices to use, as `mlx5_0`, or as `mlx5_0:1` for one port; empty: all active ports")),
  key<&o::gid_index>(expert(ranged(
    "gid_index", key_type::count_or_auto, 0, 255,
    "GID of every port; `auto`: by the rule that `millrace doctor` explains"))),
  key<&o::mtu>(expert(count(
    "mtu", 0, 4'096,
    "bytes of a packet, a power of two from 256; 0: the smaller value of the two ports"))),
  key<&o::connect>(expert(choice(
    "connect", connect_choices,
    "how queue pairs are connected. `rdma_cm` applies if both sides want it and have an IP "
    "address at the device; otherwise they use the control channel"))),
  key<&o::setup_threads>(expert(count(
    "setup_threads", 1, 64,
    "most threads that wait for the network while queue pairs connect; one per peer, started "
    "when needed"))),
  key<&o::queue_depth>(
    expert(count("queue_depth", 4, 8'192, "requests in flight on each rail of a peer"))),
  key<&o::sge_max>(expert(
    count("sge_max", 1, 256, "ranges of memory in one request; the device may allow fewer"))),
  key<&o::inline_bytes_max>(
    expert(size("inline_max", 0, 4'096, "writes up to this size travel inside their request"))),
  key<&o::message_bytes_max>(
    expert(size("message_max", 4 * kib, gib, "longer requests are split"))),
  key<&o::inflight_bytes_max>(expert(size(
    "inflight_max", 64 * kib, tib,
    "bytes in flight on each rail of a peer; at least one request"))),
  key<&o::port_inflight_bytes_max>(expert(size(
    "port_inflight_max", 64 * kib, tib,
    "bytes in flight through one port to all peers; at least one request on each rail"))),
  key<&o::signal_interval>(expert(count(
    "signal_interval", 1, 4'096, "number of requests for which the device gives one completion"))),
  key<&o::stripe_bytes_min>(
    expert(size("stripe_min", 4 * kib, tib, "smaller transfers use one rail only"))),
  key<&o::poll_us>(expert(ranged(
    "poll", key_type::duration_us, 0, 1'000'000,
    "time that the thread of the queue pairs polls after an event before it sleeps; 0: never"))),
  key<&o::sleep_ms>(expert(ms("sleep", 1, hour_ms, "longest sleep of that thread"))),
  key<&o::bind_thread>(expert(
    boolean("bind_thread", "keep that thread on the processors of the devices' NUMA nodes"))),
  key<&o::connect_timeout_ms>(expert(ms(
    "connect_timeout", 1, hour_ms,
    "longest wait for a queue pair. With `rdma_cm` its request gets the same time again; the "
    "kernel repeats it after 4.3 s"))),
  key<&o::ack_timeout_ms>(expert(ms(
    "ack_timeout", 1, hour_ms,
    "wait for an acknowledgement, rounded up to a value that devices support"))),
  key<&o::ack_retries>(
    expert(count("ack_retries", 0, 6, "times that the device sends a packet again"))),
  key<&o::op_timeout_ms>(expert(ms(
    "op_timeout", 1, day_ms,
    "a transfer fails after this time without progress; its rail, after half of it"))),
  key<&o::op_retries>(expert(
    count("op_retries", 0, 100, "times that a request is tried on another rail after one broke"))),
  key<&o::probe_interval_ms>(expert(
    ms("probe_interval", 1, hour_ms, "interval at which a rail that failed is tried again"))),
  key<&o::register_retry_ms>(expert(ms(
    "register_retry", 1, hour_ms,
    "interval at which staging memory is registered again that exceeded the limit of locked "
    "memory"))),
  key<&o::cache_entries_max>(expert(count(
    "cache_entries_max", 1, 1u << 20, "registrations of memory outside arenas that are kept"))),
  key<&o::cache_bytes_max>(expert(size(
    "cache_max", 0, 1024 * tib, "bytes of all registrations; 0: half of the machine's memory"))),
  key<&o::windows_checked>(expert(plain(
    "windows_checked", key_type::boolean_or_auto,
    "whether the devices confine peers to a memory window; `auto`: all do but soft-RoCE. `false` "
    "registers the range of each window on its own"))),
  key<&o::watch_unmaps>(expert(boolean(
    "watch_unmaps",
    "keep registrations after their use, and let the kernel report what is unmapped"))),
  key<&o::grants_max>(
    expert(count("grants_max", 1, 1u << 20, "regions to which one peer has keys"))),
  key<&o::windows_max>(expert(count("windows_max", 1, 1u << 24, "keys that one peer may hold"))),
  key<&o::backlog_bytes_max>(expert(size(
    "backlog_max", mib, tib,
    "messages of one peer that wait to be processed; a peer that sends more loses its "
    "connection"))),
});

} // namespace

template <>
key_table<o> keys_of() {
  return {rows, [](const o& options) -> std::optional<misfit> {
            if (options.mtu == 0 || (options.mtu >= 256 && std::has_single_bit(options.mtu)))
              return {};
            return misfit{
              "mtu",
              "is not the size of a packet: 256, 512, 1024, 2048 or 4096 bytes; 0 takes the "
              "smaller value of the two ports"};
          }};
}

} // namespace millrace::config
