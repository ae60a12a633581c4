// One admitted connection that carries memory in both directions.
// Held by `peer_link`.
#pragma once

#include <millrace/net/loop/io_loop.hpp>
#include <millrace/transport/tcp/bulk_socket.hpp>
#include <millrace/transport/tcp/job.hpp>
#include <millrace/transport/tcp/payload.hpp>
#include <millrace/transport/tcp/stall_watch.hpp>
#include <millrace/transport/tcp/wire.hpp>

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace millrace::transport::tcp {

class stream;

/// Gets the outcomes of chunks. Threads: any; no lock is held.
class stream_user {
public:
  virtual ~stream_user() = default;
  virtual void chunk_ended(stream& s, std::unique_ptr<chunk> c, status outcome) = 0;
  /// Called once, when nothing touches the memory of the unfinished chunks any more.
  /// `protocol_error`: the peer broke the protocol.
  virtual void stream_closed(
    stream& s, std::vector<std::unique_ptr<chunk>> unfinished, const status& why) = 0;
};

struct stream_limits {
  std::uint64_t chunk_bytes = 0;  // the bytes of a request, in either direction
  std::uint32_t requests_max = 0; // the peer's requests that are not answered
  // Bytes to read beyond a header. That much of the memory's bytes must then be copied.
  std::uint64_t ahead_bytes = 0;
  std::uint64_t turn_bytes = 4u << 20; // until others on the same loop have their turn
  /// A thread other than the loop's sends no payload larger than this.
  std::uint64_t guest_bytes_max = 64u << 10;
  bool awaited = false; // callers that wait for its answers run the loop meanwhile
  bool checksum = false;
};

/// Sends requests and answers in the order given. Receives on its loop.
///
/// Threads: any, except where stated. A thread that finds the sending side idle sends, so that
///          neither a request nor its answer waits for another thread.
class stream : public std::enable_shared_from_this<stream> {
public:
  stream(
    std::shared_ptr<net::io_loop> loop, std::unique_ptr<bulk_socket> io, std::uint64_t serial,
    std::string peer, const stream_limits& limits, std::weak_ptr<stream_user> user);

  /// Begins to receive.
  void start();
  std::uint64_t serial() const noexcept { return serial_; }

  /// Requests a chunk from the peer; `stream_user` gets the outcome. Returns false and keeps the
  /// chunk if the stream is closed.
  [[nodiscard]] bool issue(std::unique_ptr<chunk>& c);

  /// Ends the stream soon; `stream_closed` follows.
  void close(const status& why);

  stream_progress progress() const;

private:
  // The bounds of one system call, and so of one lease.
  static constexpr std::size_t parts_max = 256;
  static constexpr std::uint64_t call_bytes_max = 1u << 20;

  struct tie;
  // A unit that waits to be sent: a header with its body, then memory and a trailer.
  struct outgoing {
    unit_header header;
    std::vector<std::byte> head;
    std::unique_ptr<payload> memory;
    std::size_t head_sent = 0;
    std::uint64_t memory_sent = 0;
    std::array<std::byte, trailer_bytes> trailer{};
    std::size_t trailer_sent = 0;
    std::uint32_t crc = 0;

    std::uint64_t memory_left() const noexcept;
    bool complete() const noexcept;
    void mark_sent(std::size_t size_bytes, std::span<const iovec> memory_parts, bool checksum);
  };
  struct pending_chunk {
    std::unique_ptr<chunk> what;
    bool sent = false;               // its memory is no longer read for sending
    std::optional<status> outcome{}; // came before that
  };
  enum class phase : std::uint8_t { header, body, memory, trailer };
  using ended_chunk = std::pair<std::unique_ptr<chunk>, status>;

  // Sending:
  void pump();
  status send_queued(std::unique_lock<std::mutex>& lock, std::vector<ended_chunk>& ended);
  void continue_on_loop();
  moved_bytes send_some(outgoing& item);
  void sent_locked(const unit_header& h, std::vector<ended_chunk>& ended);
  void answer(std::uint64_t request, const status& outcome);
  void tell(std::vector<ended_chunk>& ended);

  // Receiving, on the loop:
  void on_events(std::uint32_t events);
  void receive_some(bool to_end);
  moved_bytes receive_once();
  void took(std::size_t size_bytes, std::span<const iovec> memory_parts, std::size_t memory_bytes);
  std::size_t wanted() const noexcept;
  status advance();
  bool advance_once(status& bad);
  status on_header();
  status on_body();
  status on_request(std::span<const std::byte> body);
  status on_outcome(std::span<const std::byte> words);
  status on_data();
  void take_memory_from_buffer();
  status on_trailer();
  status data_ended(const unit_trailer& t);
  status admit_request(std::uint64_t request);
  std::span<const std::byte> buffered() const noexcept {
    return {in_.data() + in_begin_, in_end_ - in_begin_};
  }

  status broken(int error_number) const;
  void finish(const status& why);
  void leave();

  const std::shared_ptr<net::io_loop> loop_;
  const std::unique_ptr<bulk_socket> io_;
  const std::uint64_t serial_;
  const std::string peer_;
  const stream_limits limits_;
  const std::weak_ptr<stream_user> user_;
  std::atomic<std::uint64_t> moved_ = 0;
  std::atomic<bool> receiving_ = false; // a unit is incomplete

  mutable std::mutex mutex_; // guards the members up to the receiving side
  bool closed_ = false;
  bool left_ = false; // `stream_closed` was called
  status why_;
  bool sending_ = false;
  bool again_ = false;       // another thread found it sending
  bool continuing_ = false;  // the loop will continue sending
  std::uint64_t budget_ = 0; // bytes left in this turn
  std::deque<outgoing> out_;
  std::uint64_t next_request_ = 1;
  std::unordered_map<std::uint64_t, pending_chunk> pending_;
  std::vector<std::uint64_t> unanswered_; // the peer's requests

  // The receiving side. Only the loop uses it.
  phase phase_ = phase::header;
  unit_header header_;
  std::unique_ptr<payload> sink_; // null: the bytes are dropped
  status refusal_;                // why the write that is being received fails
  std::uint64_t memory_left_ = 0;
  std::uint32_t crc_ = 0;
  std::vector<std::byte> in_;
  std::size_t in_begin_ = 0;
  std::size_t in_end_ = 0;
};

} // namespace millrace::transport::tcp
