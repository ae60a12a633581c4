// An authenticated connection between two processes, which carries control frames and descriptors.
// Used by the clients and sessions of `actors/wire`, and by drivers for their own small messages.
#pragma once

#include <millrace/core/fair_shares.hpp>
#include <millrace/core/ids.hpp>
#include <millrace/core/status.hpp>
#include <millrace/net/channel/stream_acceptor.hpp>
#include <millrace/net/loop/io_loop.hpp>
#include <millrace/net/socket/socket_address.hpp>
#include <millrace/net/socket/unique_fd.hpp>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
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
/// Kinds below 16 belong to the channel itself; handlers never see them.
enum class frame_kind : std::uint8_t {
  hello = 1,
  ping = 2,
  pong = 3,
  goodbye = 4,  // the sender is closing in order; carries the reason
  proof = 5,    // ends the handshake: the sender's key and its signature over both hellos
  ring = 6,     // with a file: offers memory for frames. Without: the sender's next one goes there
  request = 16, // asks an actor; holds one credit until its reply or refusal has been sent
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

/// Identifies the cluster's secret without revealing it: members with the same secret show the same
/// mark. Nil: no secret.
using cluster_mark = std::array<std::uint8_t, 16>;

/// The process at the other end. It has proved its identity with its key, on every channel. The
/// kernel reports the address, or `pid` and `uid`. `name` is the name the peer announced; with
/// certificates, it has been checked against the peer's certificate.
struct peer_info {
  peer_id id;
  std::string name; // node name, or "client:<pid>"
  std::uint32_t pid = 0;
  std::uint32_t uid = 0;
  std::uint32_t protocol = 0; // version agreed on
  /// The address of the other end on a network. Empty on a Unix socket, where `pid` and `uid` are
  /// set instead.
  std::optional<socket_address> address;
  bool connected_by_us = false; // this side connected, the peer listens
  cluster_mark cluster{};       // as announced; proved only on an encrypted channel
};

/// The names of clients begin with this.
inline constexpr std::string_view client_prefix = "client:";

/// The name of the peer and, on a network, its host: processes on two hosts may have the same name.
inline std::string name_and_host(const peer_info& peer) {
  return peer.address ? peer.name + "@" + peer.address->host() : peer.name;
}

/// Returns the party that holds what the peer is given: a user's process by its number, which the
/// kernel reports, or on a network a host's process by the id that it announces. Root and the user
/// of this process are privileged.
party party_of(const peer_info& peer);

/// The share that a peer has of the bytes that this process holds in frames: those that wait to be
/// sent, and those of which a part has arrived.
struct buffer_share {
  std::shared_ptr<lent_places> all; // null: they are not counted
  party who;

  /// Returns what holds the bytes.
  /// Errors:  `busy`.
  result<std::shared_ptr<void>> lend(std::uint64_t bytes) const {
    return all ? all->lend(who, bytes) : std::shared_ptr<void>{};
  }
};

/// One frame of each channel that has at most so many bytes is not counted.
inline constexpr std::uint64_t uncounted_bytes_max = 64u << 10;

/// The largest ring of a channel, for one direction.
inline constexpr std::uint64_t ring_bytes_max = 16u << 20;

/// The bounds of a channel. `network_options` has those that the configuration sets.
struct channel_options {
  std::string local_name;                    // announced to the peer
  std::uint32_t frame_bytes_max = 16u << 20; // larger frames close the channel
  std::uint64_t send_queue_bytes_max = 64u << 20;
  /// For a service: the bytes that its channels hold in frames. Null: they are not counted.
  std::shared_ptr<lent_places> buffers = nullptr;
  std::uint32_t heartbeat_ms = 2000;     // idle time after which a ping goes out
  std::uint32_t peer_timeout_ms = 10000; // silence after which the peer counts as lost
  std::uint32_t handshake_timeout_ms = 5000;
  std::uint32_t requests_max = 256;         // credits granted to the peer
  std::uint32_t requests_queued_max = 1024; // requests waiting here for the peer's credits
  std::uint32_t fds_per_frame_max = 8;
  /// Memory that this process and one of the same host share for frames, for each direction. A
  /// connector makes it, an acceptor takes at most so much. 0: frames go through the socket.
  std::uint64_t ring_bytes = 512u << 10;
  /// Authenticates members of the cluster on a network. Null: tls:// addresses are refused.
  std::shared_ptr<const net::tls::context> tls = nullptr;
  /// For connecting: the name of the node that must answer. The answer of another node is an error
  /// that names both. Empty: any node.
  std::string expected_name = {};
  /// For connecting to Unix sockets: users whose services may answer, besides root and the user of
  /// this process.
  std::vector<std::uint32_t> trust_uids = {};
  /// Looks up host names. Null: the resolver of the process.
  std::shared_ptr<resolver> names = nullptr;
  /// For connecting to a host with several addresses: the delay before the next address is tried as
  /// well.
  std::uint32_t stagger_ms = 250;
};

/// A key for another connection between the same two processes.
using channel_key = std::array<std::byte, 32>;

class channel;

/// Receives the events of a channel, on the loop and in order: `on_open` once, then frames, then
/// `on_close` once.
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
  /// Counts the channels of this process; none has number 0. A process may have several channels to
  /// one peer.
  std::uint64_t number() const noexcept { return number_; }

  /// Derives a secret for a label. Both ends of the channel get the same value, and no other
  /// process can compute it. On a Unix socket it is a hash over the nonces of the handshake, on an
  /// encrypted channel keying material of the session. For open channels.
  virtual channel_key derive_key(std::string_view label) const = 0;

  /// Sends a frame without blocking. The calling thread writes it at once if the socket has room;
  /// otherwise it is queued. The kernel duplicates the descriptors; the caller keeps its own.
  /// Errors: `peer_lost` when closed; `busy` when the send queue or the queue for credits is full;
  /// `invalid_argument` for a body above the *peer's* frame bound.
  [[nodiscard]] virtual status send(
    frame_kind kind, std::uint64_t correlation, std::span<const std::byte> body,
    std::span<const int> fds = {}) = 0;

  /// Says goodbye, and closes when the queue has been written or after `drain_ms`.
  virtual void close(status why, std::uint32_t drain_ms = 0) = 0;

private:
  static inline std::atomic<std::uint64_t> last_number_ = 0;
  const std::uint64_t number_ = last_number_.fetch_add(1) + 1;
};

/// Connects to "unix:/path" or "tls://host:port" without blocking, including the handshake.
/// `done` runs on the loop; after a success, `handler->on_open` has run before it.
/// Errors: `unavailable` (no process listens; names the path and the remedy); `permission_denied`
/// (the socket is one of a user who is not trusted, the secrets differ, a certificate is invalid,
/// another node answered); `deadline_exceeded` (no
/// handshake in time, name lookup included); `unsupported_version`; `protocol_error`.
void connect(
  const std::shared_ptr<io_loop>& loop, const std::string& address, const channel_options& options,
  std::shared_ptr<channel_handler> handler, completion<std::shared_ptr<channel>> done);

struct listener_options {
  std::string address; // "unix:/absolute/path", "tls://host:port" or "tls://[::]:port"
  /// Processes share these; a sixteenth is kept for root and the service's own user.
  std::uint32_t connections_max = 256;
  /// The places for connections. Listeners of one loop that share them are counted together. Null:
  /// this one has `connections_max` of its own.
  std::shared_ptr<fair_shares> connections = nullptr;
  /// Bytes of frames that the connections of a service may hold together, see `buffers_of`.
  std::uint64_t buffers_bytes_max = 512u << 20;
  // For Unix sockets.
  std::uint32_t socket_mode = 0600;
  std::vector<std::uint32_t> allow_uids; // besides the service's own user and root
  // Connections that have not proved themselves are bounded, in total and, on networks, for one
  // source (an IPv4 address, or the first 64 bits of an IPv6 address). An old one is closed for a
  // new one, see `newcomers`.
  std::uint32_t handshakes_max = 256;
  std::uint32_t handshakes_per_source_max = 64;       // for networks
  std::shared_ptr<stream_acceptor> streams = nullptr; // takes bulk streams; null: they are refused
};

/// Returns the places of a listener: those of `where`, or new ones.
std::shared_ptr<fair_shares> shares_of(const listener_options& where);
/// Returns what counts the frames of all channels of a service, for `channel_options::buffers`.
std::shared_ptr<lent_places> buffers_of(const listener_options& where);

/// Returns the handler of a newcomer, or the reason for refusing it, which is sent to the newcomer.
/// Called on the loop.
using accept_function = std::function<result<std::shared_ptr<channel_handler>>(const peer_info&)>;

/// Returns why a node refuses newcomers while it starts: `unavailable`.
status starting(const std::string& node);
/// Returns whether an error of `connect`, or of a link, is such a refusal: it is worth a retry.
/// The text decides, since an address where no process listens gives the same code.
bool is_starting(const status& why);

/// Accepts connections until it is destroyed, which removes its socket.
class listener {
public:
  virtual ~listener() = default;
  /// The address as given; on a network with the port that the system chose, if 0 was given.
  virtual const std::string& address() const noexcept = 0;

  /// Makes the socket (and its directory, if it is missing, see `socket_file`) and accepts on the
  /// loop. `accept` is asked about each peer that has proved its identity.
  ///
  /// Unix: the socket file of a dead process is replaced; the file of a live one is
  /// `already_exists`. A lock file beside the socket makes sure that only one of two starting
  /// services wins.
  /// Network: listens at every address of the host's name, with one port; the host "[::]" takes
  /// IPv4 too. The name lookup blocks the caller, so do not open a listener on the loop.
  static result<std::shared_ptr<listener>> open(
    const std::shared_ptr<io_loop>& loop, const listener_options& where,
    const channel_options& options, accept_function accept);

  /// Stops accepting. Open channels stay open.
  virtual void stop() = 0;
};

} // namespace millrace::net
