// The part of the table of keys that is about moving bytes and about connections. Used by schema.cpp.
#include <millrace/config/schema.hpp>
#include <millrace/config/section.hpp>
#include <millrace/core/durations.hpp>

#include <array>

namespace millrace::config {

namespace {

// Choices of an enumeration stand in the order of its values.
constexpr std::array<std::string_view, 5> drivers = {"local", "shm", "verbs", "tcp", "staged"};
constexpr std::array<std::string_view, 2> connect_choices = {"channel", "rdma_cm"};

using enum key_type;

constexpr section transport{"transport"};
constexpr auto transport_keys = [] {
  using s = transport_settings;
  return std::to_array<bound_key<s>>({
    {{"transport",
      "prefer",
      choices,
      "[local, shm, verbs, tcp, staged]",
      0,
      0,
      drivers,
      false,
      {},
      "drivers to use, best first; those that this machine cannot have are left out"},
     put<s, &s::prefer>},
    {transport.count("movers", "0", 0, 64, "threads that copy; 0 is one per core, at most 8"),
     put<s, &s::movers>},
    {transport.size("chunk", "1MiB", 64 * kib, gib, "piece of a transfer that one mover takes"),
     put<s, &s::chunk_bytes>},
    {transport.size(
       "eager_max", "4KiB", 0, 64 * kib,
       "payloads up to this size ride inside a message; 0 is never"),
     put<s, &s::eager_max_bytes>},
    {transport.count(
       "device_threads", "2", 1, 64,
       "threads that wait for copies of GPUs; none before there are any"),
     put<s, &s::device_threads>},
    {transport.ms(
       "retry_after", "10s", 10, hour_ms,
       "how long a driver that failed with a peer is left out before it is tried again"),
     put<s, &s::retry_after_ms>},
  });
}();

constexpr section shm{"shm"};
constexpr auto shm_keys = [] {
  using s = shm_settings;
  return std::to_array<bound_key<s>>({
    {shm.count(
       "transfers_max", "65536", 1, 16'777'216,
       "transfers waiting or running with each peer before it is busy; 32768 pieces at most count "
       "as one"),
     put<s, &s::transfers_max>},
    {shm.size(
       "backlog_max", "256MiB", mib, tib,
       "memory for the lists of pieces of one peer's transfers that wait or run; more are busy"),
     put<s, &s::backlog_max_bytes>},
    {shm.count(
       "mapped_max", "4096", 1, 65'536,
       "arenas and files of one peer that are mapped; more end its channel"),
     put<s, &s::mapped_max>},
    {shm.ms(
       "batch_delay", "1ms", 1, 60 * second_ms,
       "longest wait of a short transfer, or of its end, for others that go in the same message"),
     put<s, &s::batch_delay_ms>},
    {shm.ms(
       "answer_timeout", "10m", second_ms, day_ms,
       "time without an answer, while some are due, after which a peer counts as lost"),
     put<s, &s::answer_timeout_ms>},
  });
}();

constexpr section tcp{"tcp"};
constexpr auto tcp_keys = [] {
  using s = tcp_settings;
  return std::to_array<bound_key<s>>({
    {tcp.plain(
       "listen", endpoints, "[]",
       "addresses of a network of its own for bulk, told to every peer; port 0 is any. Without "
       "them streams come in where channels do"),
     put<s, &s::listen>},
    {tcp.count(
       "streams", "4", 1, 64, "streams for each peer; of both sides the smaller number counts"),
     put<s, &s::streams>},
    {tcp.count("io_threads", "2", 1, 64, "threads for all streams but the first ones"),
     put<s, &s::io_threads>},
    {tcp.size("chunk", "1MiB", 256 * kib, 64 * mib, "piece of a transfer that one stream moves"),
     put<s, &s::chunk_bytes>},
    {tcp.size(
       "small_max", "64KiB", 0, mib,
       "transfers up to this size take the first stream, where no large one is in their way"),
     put<s, &s::small_max_bytes>},
    {tcp.count("requests_max", "64", 1, 4'096, "chunks asked for on one stream at a time"),
     put<s, &s::requests_max>},
    {tcp.size(
       "inflight_max", "4MiB", 256 * kib, gib,
       "bytes asked for on one stream at a time; one chunk at least"),
     put<s, &s::inflight_max_bytes>},
    {tcp.count(
       "transfers_max", "65536", 1, 16'777'216,
       "transfers waiting or running with each peer before it is busy"),
     put<s, &s::transfers_max>},
    {tcp.ms("connect_timeout", "5s", 1, day_ms, "longest wait for the connection of a stream"),
     put<s, &s::connect_timeout_ms>},
    {tcp.ms("admission_timeout", "5s", 1, day_ms, "time a stream has to be admitted"),
     put<s, &s::admission_timeout_ms>},
    {tcp.ms(
       "stall_timeout", "10s", 1, day_ms,
       "time in which the chunk that was asked for first must end, or its stream move 64 KiB; else "
       "the stream counts as lost. Other transfers' bytes give it time only up to four times "
       "`tcp.inflight_max`"),
     put<s, &s::stall_timeout_ms>},
    {tcp.ms("backoff_min", "50ms", 1, day_ms, "first wait before a lost stream is opened again"),
     put<s, &s::backoff_min_ms>},
    {tcp.ms("backoff_max", "2s", 1, day_ms, "longest such wait, reached by doubling"),
     put<s, &s::backoff_max_ms>},
    {tcp.count("attempts_max", "3", 1, 100, "streams that may break under one chunk"),
     put<s, &s::attempts_max>},
    {tcp.ms(
       "keepalive", "15s", 0, 32'767 * second_ms,
       "idle time before the kernel probes the other end, in whole seconds; 0 is never"),
     put<s, &s::keepalive_ms>},
    {tcp.size("send_buffer", "0", 0, gib, "send buffer of a socket; 0: the kernel decides"),
     put<s, &s::send_buffer_bytes>},
    {tcp.size("receive_buffer", "0", 0, gib, "receive buffer of a socket; 0: the kernel decides"),
     put<s, &s::receive_buffer_bytes>},
    {tcp.count("admissions_max", "256", 1, 65'536, "streams being admitted at a time"),
     put<s, &s::admissions_max>},
    {tcp.count(
       "admissions_per_source_max", "64", 1, 65'536,
       "of those, from one address (of IPv6, its first 64 bits)"),
     put<s, &s::admissions_per_source_max>},
    {tcp.plain("checksum", boolean, "false", "CRC32C of every chunk, if either side wants it"),
     put<s, &s::checksum>},
    {tcp.plain("encrypt", boolean, "false", "TLS 1.3 on every stream, if either side wants it"),
     put<s, &s::encrypt>},
  });
}();

constexpr section verbs{"verbs"};
constexpr auto verbs_keys = [] {
  using s = verbs_settings;
  return std::to_array<bound_key<s>>({
    {verbs.plain(
       "devices", devices, "[]",
       "devices to use, as `mlx5_0` or, for one port, `mlx5_0:1`; none named: all active ports"),
     put<s, &s::devices>},
    {verbs.ranged(
       "gid_index", count_or_auto, "auto", 0, 255,
       "GID of every port; `auto`: by the rule that `millrace doctor` explains"),
     put<s, &s::gid_index>},
    {verbs.count(
       "mtu", "0", 0, 4'096,
       "bytes of a packet, a power of two from 256 on; 0: the smaller of what the two ports have"),
     put<s, &s::mtu>},
    {verbs.choice(
       "connect", "channel", connect_choices,
       "how queue pairs are connected; `rdma_cm` where both sides say so and have an IP address at "
       "the device, else `channel`"),
     put<s, &s::connect>},
    {verbs.count(
       "setup_threads", "8", 1, 64,
       "threads, made when needed, in which connecting waits for the network; one for each peer"),
     put<s, &s::setup_threads>},
    {verbs.count("queue_depth", "128", 4, 8'192, "requests under way on each rail of a peer"),
     put<s, &s::queue_depth>},
    {verbs.count("sge_max", "30", 1, 256, "pieces of one request; no more than the device takes"),
     put<s, &s::sge_max>},
    {verbs.size(
       "inline_max", "220", 0, 4'096, "writes up to this size travel inside their request"),
     put<s, &s::inline_max_bytes>},
    {verbs.size("message_max", "1MiB", 4 * kib, gib, "longer pieces are cut"),
     put<s, &s::message_max_bytes>},
    {verbs.size(
       "inflight_max", "16MiB", 64 * kib, tib,
       "bytes under way on each rail of a peer; one request at least"),
     put<s, &s::inflight_max_bytes>},
    {verbs.size(
       "port_inflight_max", "32MiB", 64 * kib, tib,
       "bytes under way over one port to all peers; one request at least on each rail"),
     put<s, &s::port_inflight_max_bytes>},
    {verbs.count("signal_interval", "16", 1, 4'096, "every so many requests give a completion"),
     put<s, &s::signal_interval>},
    {verbs.size("stripe_min", "4MiB", 4 * kib, tib, "smaller transfers stay on one rail"),
     put<s, &s::stripe_min_bytes>},
    {verbs.ranged(
       "poll", duration_us, "50us", 0, 1'000'000,
       "busy polling after something happened, before the thread sleeps; 0 is never"),
     put<s, &s::poll_us>},
    {verbs.ms("sleep", "1s", 1, hour_ms, "longest sleep of that thread without a look around"),
     put<s, &s::sleep_ms>},
    {verbs.plain(
       "bind_thread", boolean, "true",
       "keep that thread on the processors of the devices' NUMA nodes"),
     put<s, &s::bind_thread>},
    {verbs.ms(
       "connect_timeout", "5s", 1, hour_ms,
       "longest wait for a queue pair; with `rdma_cm` once more for its request, which the kernel "
       "repeats after 4.3 s"),
     put<s, &s::connect_timeout_ms>},
    {verbs.ms(
       "ack_timeout", "67ms", 1, hour_ms,
       "wait for an acknowledgement, rounded up to what devices know"),
     put<s, &s::ack_timeout_ms>},
    {verbs.count("ack_retries", "6", 0, 6, "times the device sends again"),
     put<s, &s::ack_retries>},
    {verbs.ms(
       "op_timeout", "15s", 1, day_ms,
       "time without progress after which a transfer fails; after half of it, its rail"),
     put<s, &s::op_timeout_ms>},
    {verbs.count(
       "op_retries", "3", 0, 100, "times a request is tried on another rail after one broke"),
     put<s, &s::op_retries>},
    {verbs.ms("probe_interval", "1s", 1, hour_ms, "how often a rail that failed is tried"),
     put<s, &s::probe_interval_ms>},
    {verbs.ms(
       "register_retry", "10s", 1, hour_ms,
       "how often staging memory that lacked room for its registration is tried"),
     put<s, &s::register_retry_ms>},
    {verbs.count(
       "cache_entries_max", "4096", 1, 1'048'576, "registrations of memory outside arenas kept"),
     put<s, &s::cache_entries_max>},
    {verbs.size(
       "cache_max", "0", 0, 1024 * tib, "bytes of all registrations; 0: half of the memory"),
     put<s, &s::cache_max_bytes>},
    {verbs.plain(
       "windows_checked", boolean_or_auto, "auto",
       "the devices keep peers inside a memory window; `auto`: all but soft-RoCE do. `false` "
       "registers each window's range by itself"),
     put<s, &s::windows_checked>},
    {verbs.plain(
       "watch_unmaps", boolean, "true",
       "keep registrations beyond their use and let the kernel say what is unmapped"),
     put<s, &s::watch_unmaps>},
    {verbs.count("grants_max", "4096", 1, 1'048'576, "regions of which one peer has keys"),
     put<s, &s::grants_max>},
    {verbs.count("windows_max", "65536", 1, 16'777'216, "keys that one peer may hold"),
     put<s, &s::windows_max>},
    {verbs.size(
       "backlog_max", "64MiB", mib, tib,
       "messages of one peer that wait to be looked at; more end its channel"),
     put<s, &s::backlog_bytes_max>},
  });
}();

constexpr section staged{"staged"};
constexpr auto staged_keys = [] {
  using s = staged_settings;
  return std::to_array<bound_key<s>>({
    {staged.size(
       "size", "64MiB", 4 * mib, tib,
       "memory through which bytes of GPUs pass that no network reaches; made when a peer first "
       "asks"),
     put<s, &s::size_bytes>},
    {staged.size("chunk", "4MiB", 256 * kib, gib, "bytes that pass at a time"),
     put<s, &s::chunk_bytes>},
    {staged.count("chunks_max", "8", 1, 4'096, "chunks lent to one peer at a time"),
     put<s, &s::chunks_max>},
    {staged.count(
       "transfers_max", "65536", 1, 16'777'216,
       "transfers that wait for chunks of each peer before it is busy"),
     put<s, &s::transfers_max>},
    {staged.ms(
       "hold_timeout", "30s", 1, hour_ms,
       "how long a peer may keep a chunk, and how long it waits for one before it is busy"),
     put<s, &s::hold_timeout_ms>},
  });
}();

constexpr section channel{"channel"};
constexpr auto channel_keys = [] {
  using s = channel_settings;
  return std::to_array<bound_key<s>>({
    {channel.size("frame_max", "16MiB", 128 * kib, gib, "largest frame accepted from a peer"),
     put<s, &s::frame_max_bytes>},
    {channel.size(
       "send_queue_max", "64MiB", 128 * kib, 16 * gib,
       "bytes waiting to be sent to one peer before requests are refused as busy"),
     put<s, &s::send_queue_max_bytes>},
    {channel.ms("heartbeat", "2s", 10, hour_ms, "silence after which a sign of life is sent"),
     put<s, &s::heartbeat_ms>},
    {channel.ms("peer_timeout", "10s", 20, day_ms, "silence after which a peer counts as lost"),
     put<s, &s::peer_timeout_ms>},
    {channel.ms(
       "handshake_timeout", "5s", 10, hour_ms,
       "time a new connection has to introduce "
       "itself"),
     put<s, &s::handshake_timeout_ms>},
    {channel.count("requests_max", "256", 1, 65'536, "requests in flight granted to each peer"),
     put<s, &s::requests_max>},
    {channel.ranged(
       "poll", duration_us, "50us", 0, 1'000'000,
       "longest adaptive polling before a thread sleeps; 0 is never"),
     put<s, &s::poll_us>},
    {channel.count(
       "connections_max", "256", 1, 65'536, "connections open at once, at all addresses of a node"),
     put<s, &s::connections_max>},
    {channel.count(
       "handshakes_max", "256", 1, 65'536,
       "connections from networks that have not proved themselves yet; the oldest gives way"),
     put<s, &s::handshakes_max>},
    {channel.count(
       "handshakes_per_source_max", "64", 1, 65'536,
       "of those, from one address (of IPv6, its first 64 bits)"),
     put<s, &s::handshakes_per_source_max>},
    {channel.ms(
       "stagger", "250ms", 1, hour_ms,
       "how long one address of a host with several is tried alone"),
     put<s, &s::stagger_ms>},
    {channel.count(
       "lookups_max", "256", 1, 65'536, "host names being looked up, or waiting for it"),
     put<s, &s::lookups_max>},
    {channel.count("lookup_threads_max", "4", 1, 64, "threads that look them up"),
     put<s, &s::lookup_threads_max>},
    {channel.count("lookup_addresses_max", "16", 1, 256, "addresses of one name that are tried"),
     put<s, &s::lookup_addresses_max>},
  });
}();

constexpr section security{"security"};
constexpr auto security_keys = [] {
  using s = security_settings;
  return std::to_array<bound_key<s>>({
    {security.plain(
       "secret", path, {},
       "the cluster's secret, made by `millrace cluster secret FILE`; the same on every host"),
     put<s, &s::secret>},
    {security.plain(
       "certificate", path, {}, "instead of a secret: PEM file of this node's certificate"),
     put<s, &s::certificate>},
    {security.plain("key", path, {}, "PEM file of its key"), put<s, &s::key>},
    {security.plain(
       "authority", path, {}, "PEM file of the authority that signed all certificates"),
     put<s, &s::authority>},
  });
}();

} // namespace

template <>
std::span<const bound_key<transport_settings>> keys_of() {
  return transport_keys;
}
template <>
std::span<const bound_key<shm_settings>> keys_of() {
  return shm_keys;
}
template <>
std::span<const bound_key<tcp_settings>> keys_of() {
  return tcp_keys;
}
template <>
std::span<const bound_key<verbs_settings>> keys_of() {
  return verbs_keys;
}
template <>
std::span<const bound_key<staged_settings>> keys_of() {
  return staged_keys;
}
template <>
std::span<const bound_key<channel_settings>> keys_of() {
  return channel_keys;
}
template <>
std::span<const bound_key<security_settings>> keys_of() {
  return security_keys;
}

} // namespace millrace::config
