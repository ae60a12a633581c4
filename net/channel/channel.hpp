// One authenticated connection between two processes; carries control frames and descriptors.
// Used by the proxies and sessions of `actors`, and by drivers for their own small messages.
#pragma once

#include <millrace/core/ids.hpp>
#include <millrace/core/status.hpp>
#include <millrace/net/channel/stream_acceptor.hpp>
#include <millrace/net/loop/io_loop.hpp>
#include <millrace/net/socket/socket_address.hpp>
#include <millrace/net/socket/unique_fd.hpp>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::net {

class resolver; // socket/resolver.hpp
namespace tls {
class context; // tls/context.hpp
}

/// What a frame is for. The values travel on the wire: append, never renumber.
/// Kinds below 16 belong to the channel itself and are never handed out.
enum class frame_kind : std::uint8_t {
  hello = 1,
  ping = 2,
  pong = 3,
  goodbye = 4,  // the sender is closing in order; carries the reason
  proof = 5,    // ends the handshake: the sender's key and its signature over both hellos
  request = 16, // asks an actor; uses one credit until its reply or refusal has been sent
  reply = 17,
  cancel = 18, // the requester gave up; the reply still comes
  driver = 19, // a driver's own message; `target` says which driver
};

/// A frame as it arrives. `body` is valid during the callback only.
struct frame {
  frame_kind kind{};
  std::uint64_t correlation = 0;
  std::span<const std::byte> body;
  std::vector<unique_fd> fds;
};

/// Members that have the same secret show each other the same mark; the secret does not follow from it. Nil: no secret.
using cluster_mark = std::array<std::uint8_t, 16>;

/// Who is at the other end. The identity is proved with the key behind it, on every channel; the
/// address, or `pid` and `uid`, come from the kernel. `name` is what the peer says: where certificates
/// are used it has been checked against the peer's.
struct peer_info {
  peer_id id;
  std::string name; // node name, or "client:<pid>"
  std::uint32_t pid = 0;
  std::uint32_t uid = 0;
  std::uint32_t protocol = 0; // version agreed on
  /// The other end's address on a network; empty on a Unix socket, where `pid` and `uid` are known instead.
  std::optional<socket_address> address;
  bool connected_by_us = false; // this side connected, the peer listens
  cluster_mark cluster{};       // what it says; proved only where the channel is encrypted
};

/// Its name, and its host where it is another: processes of two hosts may have one name.
inline std::string name_and_host(const peer_info& peer) {
  return peer.address ? peer.name + "@" + peer.address->host() : peer.name;
}

/// Every bound of a channel. `network_options` has those that the configuration sets.
struct channel_options {
  std::string local_name;                    // announced to the peer
  std::uint32_t frame_bytes_max = 16u << 20; // larger frames close the channel
  std::uint64_t send_queue_bytes_max = 64u << 20;
  std::uint32_t heartbeat_ms = 2000;     // idle time after which a ping goes out
  std::uint32_t peer_timeout_ms = 10000; // silence after which the peer counts as lost
  std::uint32_t handshake_timeout_ms = 5000;
  std::uint32_t requests_max = 256;         // credits granted to the peer
  std::uint32_t requests_queued_max = 1024; // requests waiting here for the peer's credits
  std::uint32_t fds_per_frame_max = 8;
  /// What proves members of the cluster to each other on a network. Null: tls:// addresses are refused.
  std::shared_ptr<const net::tls::context> tls = nullptr;
  /// Connecting only: the node that shall answer; another one is an error that names both. Empty: any.
  std::string expected_name = {};
  /// Looks up host names; null: the process's own.
  std::shared_ptr<resolver> names = nullptr;
  /// Connecting to a host with several addresses: how long one of them is tried alone.
  std::uint32_t stagger_ms = 250;
};

/// A key for another connection between the same two processes.
using channel_key = std::array<std::byte, 32>;

class channel;

/// Receives what happens on a channel, on the loop, in order: `on_open` once, frames, `on_close`
/// once.
class channel_handler {
public:
  virtual ~channel_handler() = default;
  virtual void on_open(const std::shared_ptr<channel>& c) = 0;
  virtual void on_frame(channel& c, frame f) = 0;
  virtual void on_close(channel& c, const status& why) = 0;
};

/// Threads: any. Frames sent from one thread arrive in order.
class channel : public std::enable_shared_from_this<channel> {
public:
  virtual ~channel() = default;

  virtual const peer_info& peer() const noexcept = 0;
  virtual bool is_open() const noexcept = 0;

  /// A secret that both ends of this channel compute alike for a label, and nobody else can: a hash over the
  /// handshake's fresh nonces on a Unix socket, keying material of the session where it is encrypted.
  /// For open channels.
  virtual channel_key derive_key(std::string_view label) const = 0;

  /// Hands a frame over without blocking: written at once by the calling thread when the socket
  /// takes it, else queued. Descriptors are duplicated by the kernel; the caller keeps its own.
  /// Errors: `peer_lost` when closed; `busy` when the send queue or the queue for credits is full;
  /// `invalid_argument` for a body above the *peer's* frame bound.
  [[nodiscard]] virtual status send(
    frame_kind kind, std::uint64_t correlation, std::span<const std::byte> body,
    std::span<const int> fds = {}) = 0;

  /// Says goodbye and closes once what is queued has been written, or after `drain_ms`.
  virtual void close(status why, std::uint32_t drain_ms = 0) = 0;
};

/// Connects to "unix:/path" or "tls://host:port" without blocking and shakes hands.
/// `done` runs on the loop, after `handler->on_open` when it succeeded.
/// Errors: `unavailable` (nobody listens; says the path and the remedy), `permission_denied` (the
/// secrets differ, a certificate does not hold, another node answered), `deadline_exceeded` (no
/// handshake in time, name lookup included), `unsupported_version`, `protocol_error`.
void connect(
  const std::shared_ptr<io_loop>& loop, const std::string& address, const channel_options& options,
  std::shared_ptr<channel_handler> handler, completion<std::shared_ptr<channel>> done);

struct listener_options {
  std::string address; // "unix:/absolute/path", "tls://host:port" or "tls://[::]:port"
  std::uint32_t connections_max = 256;
  /// How many there are, counted together by the listeners of one loop that share it. Null: each counts its own.
  std::shared_ptr<std::uint32_t> connections = nullptr;
  // Of Unix sockets.
  std::uint32_t socket_mode = 0600;
  std::vector<std::uint32_t> allow_uids; // besides the service's own user and root
  // Of networks. Connections that have not proved themselves are bounded in all and for one source (an
  // IPv4 address, 64 bits of an IPv6 one); the oldest gives way.
  std::uint32_t handshakes_max = 256;
  std::uint32_t handshakes_per_source_max = 64;
  std::shared_ptr<stream_acceptor> streams = nullptr; // takes bulk streams; null: they are refused
};

inline std::shared_ptr<std::uint32_t> counter_of(const listener_options& where) {
  return where.connections ? where.connections : std::make_shared<std::uint32_t>(0);
}

/// Accepts connections until destroyed; removes its socket then.
class listener {
public:
  virtual ~listener() = default;
  /// As given; of a network with the port that was chosen, where 0 was asked for.
  virtual const std::string& address() const noexcept = 0;

  /// Makes the socket (and its directory, mode 0700, if missing) and accepts on the loop.
  /// `accept` gives the handler of a new connection, or null to refuse it.
  /// A socket file left by a dead process is taken over; a live one is `already_exists`; the
  /// decision is made under a lock file beside the socket, so that two starting services cannot
  /// both win. On a network every address of the host's name is listened on, with one port; a host
  /// of "[::]" takes IPv4 too. Looking the name up blocks the caller, so open no listener on the loop.
  static result<std::shared_ptr<listener>> open(
    const std::shared_ptr<io_loop>& loop, const listener_options& where,
    const channel_options& options,
    std::function<std::shared_ptr<channel_handler>(const peer_info&)> accept);

  /// Stops accepting; open channels live on.
  virtual void stop() = 0;
};

} // namespace millrace::net
