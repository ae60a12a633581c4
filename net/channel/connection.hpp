// A channel over one byte stream, from the handshake to the end.
// Made by `connect` and by listeners. Its users see a `channel`.
#pragma once

#include <millrace/net/channel/byte_stream.hpp>
#include <millrace/net/channel/channel.hpp>
#include <millrace/net/channel/frame_parser.hpp>
#include <millrace/net/channel/handshake.hpp>
#include <millrace/net/channel/send_queue.hpp>
#include <millrace/net/socket/unix_socket.hpp>

#include <sys/epoll.h>

#include <atomic>
#include <deque>
#include <functional>
#include <mutex>

namespace millrace::net {

/// The events by which a connection reads, and learns that the peer has closed its end.
inline constexpr std::uint32_t reading_events = EPOLLIN | EPOLLRDHUP;

/// Callbacks to the maker of a connection, all on the loop.
struct connection_hooks {
  /// The peer has proved its identity. Returns the handler, or the reason to refuse the peer.
  std::function<result<std::shared_ptr<channel_handler>>(const peer_info&)> admit;
  /// The handshake's outcome, after `on_open`. May be null.
  completion<std::shared_ptr<channel>> done;
  /// The connection is gone; the last call. May be null.
  std::function<void()> gone;
};

/// The parts that a connection is made from.
struct connection_seed {
  handshake_side side = handshake_side::connector;
  std::unique_ptr<byte_stream> stream;
  peer_credentials who;                  // the other end of a Unix socket
  std::optional<socket_address> address; // the other end on a network
  time_point began;                      // the handshake timeout counts from here
};

/// The hooks of the connecting side. They name the address in errors and check which node answered.
connection_hooks connector_hooks(
  const std::string& address, const channel_options& options,
  std::shared_ptr<channel_handler> handler, completion<std::shared_ptr<channel>> done);

class connection final : public channel {
public:
  connection(
    std::shared_ptr<io_loop> loop, connection_seed seed, const channel_options& options,
    connection_hooks hooks);

  /// Begins the handshake. On the loop, once.
  void start();

  const peer_info& peer() const noexcept override { return peer_; }
  bool is_open() const noexcept override { return phase_ == phase::open; }
  channel_key derive_key(std::string_view label) const override;
  status send(
    frame_kind kind, std::uint64_t correlation, std::span<const std::byte> body,
    std::span<const int> fds) override;
  void close(status why, std::uint32_t drain_ms) override;

private:
  enum class phase : std::uint8_t { handshake, open, closing, closed };
  struct loop_tie;

  struct waiting_request {
    std::uint64_t correlation = 0;
    byte_buffer body;
    std::vector<unique_fd> fds;
    bool cancelled = false;
  };

  std::shared_ptr<connection> self() {
    return std::static_pointer_cast<connection>(shared_from_this());
  }

  // connection.cpp: on the loop, without the lock.
  void on_events(std::uint32_t events);
  void read_some();
  void read_turn();
  bool has_peer_left();
  void settle_stream();
  bool deliver();
  status count_partial();
  status take(const parsed_frame& frame);
  status take_in_handshake(const parsed_frame& frame);
  status take_hello(const parsed_frame& frame);
  status take_proof(const parsed_frame& frame);
  status take_counted(const parsed_frame& frame);
  void open(std::shared_ptr<channel_handler> handler);
  void on_heartbeat();
  void schedule_heartbeat();
  void end_by_goodbye(std::span<const std::byte> body);
  void lost(const status& how);
  void fault(const status& why);
  void finish(const status& why);
  std::string describe_peer() const;
  byte_buffer own_hello() const;
  bool is_connector() const noexcept { return side_ == handshake_side::connector; }

  // connection_ring.cpp: on the loop.
  ring_port* reading_ring() const;
  void offer_ring();
  status take_ring(std::vector<unique_fd> fds);
  void switch_to_ring(); // with the lock

  // connection_send.cpp: any thread, with the lock unless it says otherwise.
  status send_request(
    std::uint64_t correlation, std::span<const std::byte> body, std::span<const int> fds);
  status queue_request(
    std::uint64_t correlation, std::span<const std::byte> body, std::span<const int> fds);
  bool cancel_waiting(std::uint64_t correlation);
  status transmit(
    frame_kind kind, std::uint64_t correlation, std::span<const std::byte> body,
    std::span<const int> fds, bool beyond_bound = false);
  void release_waiting();
  void drop_waiting();
  bool writes_to_socket() const;
  void arm_writing();
  void send_own(frame_kind kind, std::span<const std::byte> body); // takes the lock
  void send_if_idle(frame_kind kind);                              // takes the lock
  void flush();                                                    // takes the lock; on the loop
  void wait_for_room();
  void drain(std::uint32_t drain_ms); // takes the lock; on the loop

  const std::shared_ptr<io_loop> loop_;
  const handshake_side side_;
  const channel_options options_;
  const time_point began_;
  std::atomic<phase> phase_ = phase::handshake; // leaves `open` under the lock only

  // Used on the loop only.
  connection_hooks hooks_;
  std::shared_ptr<channel_handler> handler_;
  peer_info peer_;
  frame_parser parser_;
  buffer_share share_;
  std::shared_ptr<void> partial_; // counts the large frame of which a part has arrived
  std::vector<unique_fd> received_fds_;
  byte_buffer our_hello_;
  byte_buffer their_hello_;
  std::uint64_t timer_ = 0;
  std::uint64_t drain_timer_ = 0;
  bool read_posted_ = false;
  bool heard_ = false; // since the last heartbeat
  // It has closed its end. What it asked before is in the socket still.
  bool peer_has_left_ = false;
  time_point peer_seen_at_{}; // it had not by then
  bool ring_known_ = false;   // to both sides, as far as this one knows
  // Bytes of the socket were read beside a frame. One of them may have said that the ring has room.
  bool event_read_ = false;
  time_point heartbeat_at_{};
  std::chrono::milliseconds silence_{};

  const std::unique_ptr<byte_stream> stream_;

  std::mutex send_mutex_; // guards all below
  send_queue queue_;
  bool writing_armed_ = false;
  bool retrying_ = false; // by a timer, while it is armed
  bool ring_due_ = false; // the next frame goes there, once the socket has taken those before
  status closing_why_;
  std::uint32_t peer_frame_bytes_max_ = 0;
  std::uint32_t peer_fds_max_ = 0;
  std::uint32_t granted_ = 0;     // requests that the peer lets this side have outstanding
  std::uint32_t outstanding_ = 0; // our requests without reply
  std::uint32_t serving_ = 0;     // the peer's requests without reply
  std::deque<waiting_request> waiting_;
  std::uint64_t waiting_bytes_ = 0;
};

} // namespace millrace::net
