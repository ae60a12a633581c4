// The keys of the section `channel`.
#include <millrace/core/durations.hpp>
#include <millrace/net/network_options.hpp>

#include <array>

namespace millrace::config {

template <>
key_table<net::network_options> keys_of() {
  using o = net::network_options;
  using channel = net::channel_options;
  using listener = net::listener_options;
  using names = net::resolver_options;
  static constexpr auto rows = std::to_array<bound_key<o>>({
    key<&o::channel, &channel::frame_bytes_max>(
      expert(size("frame_max", 128 * kib, gib, "the largest frame that is accepted from a peer"))),
    key<&o::channel, &channel::send_queue_bytes_max>(expert(size(
      "send_queue_max", 128 * kib, 16 * gib,
      "bytes that wait to be sent to one peer; more requests get the answer `busy`"))),
    key<&o::channel, &channel::heartbeat_ms>(
      expert(ms("heartbeat", 10, hour_ms, "idle time after which a sign of life is sent"))),
    key<&o::channel, &channel::peer_timeout_ms>(
      expert(ms("peer_timeout", 20, day_ms, "a silent peer counts as lost after this time"))),
    key<&o::channel, &channel::handshake_timeout_ms>(expert(ms(
      "handshake_timeout", 10, hour_ms,
      "time in which a new connection must complete its handshake"))),
    key<&o::channel, &channel::requests_max>(
      expert(count("requests_max", 1, 65'536, "requests in flight that each peer may send"))),
    key<&o::channel, &channel::ring_bytes>(expert(size(
      "ring", 0, net::ring_bytes_max,
      "memory that two processes of one host share for their frames, for each direction; rounded "
      "up to a power of two. A node takes no larger one from a client. 0: frames go through the "
      "socket"))),
    key<&o::loop, &net::io_loop_options::poll_us>(expert(ranged(
      "poll", key_type::duration_us, 0, 1'000'000,
      "longest time that a thread polls before it sleeps; it adapts below that. 0: never"))),
    key<&o::listener, &listener::connections_max>(expert(count(
      "connections_max", 1, 65'536,
      "connections open at once, at all addresses of a node, which processes share. A sixteenth, "
      "and at least one of several, is kept for root and the service's own user"))),
    key<&o::listener, &listener::buffers_bytes_max>(used_as(
      key_use::for_peers,
      expert(size(
        "buffers_max", 64 * mib, tib,
        "bytes that a node holds at all its connections in frames that wait to be sent and in "
        "large frames of which a part has arrived, which processes share; an answer that does not "
        "fit is `busy`, and a peer whose frame does not fit loses its connection")))),
    key<&o::listener, &listener::handshakes_max>(expert(count(
      "handshakes_max", 1, 65'536,
      "connections in their handshake, at each address; a new one displaces an old one"))),
    key<&o::listener, &listener::handshakes_per_source_max>(expert(count(
      "handshakes_per_source_max", 1, 65'536,
      "connections from one network address in their handshake; IPv6 addresses with the same first "
      "64 bits count as one"))),
    key<&o::channel, &channel::stagger_ms>(expert(ms(
      "stagger", 1, hour_ms, "time for which one address of a host with several is tried alone"))),
    key<&o::names, &names::lookups_max>(expert(
      count("lookups_max", 1, 65'536, "host names that are looked up or wait for a look-up"))),
    key<&o::names, &names::threads_max>(
      expert(count("lookup_threads_max", 1, 64, "threads that look up host names"))),
    key<&o::names, &names::addresses_max>(
      expert(count("lookup_addresses_max", 1, 256, "addresses of one host name that are tried"))),
  });
  return {rows, [](const o& options) -> std::optional<misfit> {
            auto& c = options.channel;
            if (c.peer_timeout_ms / 2 < c.heartbeat_ms)
              return misfit{"peer_timeout", "must be at least twice", "heartbeat"};
            if (c.frame_bytes_max > c.send_queue_bytes_max)
              return misfit{"frame_max", "must not be above", "send_queue_max"};
            if (c.frame_bytes_max > options.listener.buffers_bytes_max)
              return misfit{"frame_max", "must not be above", "buffers_max"};
            return {};
          }};
}

} // namespace millrace::config
