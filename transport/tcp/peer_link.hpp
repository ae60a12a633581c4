// The tcp driver's state for one peer: its streams, and the transfers that wait for them.
// Held by the driver, one for each channel.
#pragma once

#include <millrace/net/channel/channel.hpp>
#include <millrace/transport/tcp/messages.hpp>
#include <millrace/transport/tcp/stream.hpp>
#include <millrace/transport/tcp/stream_admission.hpp>
#include <millrace/transport/tcp/tcp_options.hpp>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace millrace::transport::tcp {

/// The loops that serve streams. The channels' own loop serves the first stream of every peer, so
/// that a waiting caller reads the answer itself.
struct stream_loops {
  std::shared_ptr<net::io_loop> first;
  std::vector<std::shared_ptr<net::io_loop>> others;

  const std::shared_ptr<net::io_loop>& of(std::size_t slot) const {
    return slot == 0 ? first : others[(slot - 1) % others.size()];
  }
};

/// Opens streams to one peer and hands out the chunks of transfers.
///
/// *Problem*: a stream may break while the channel lives. Its chunks are requested again on another
/// stream, but only after the peer has said that it will take nothing more from the broken one.
/// Otherwise an old copy of a write, still in a socket's buffer, could overwrite a newer one.
///
/// Threads: any, except where stated. Completions run without the lock.
class peer_link : public stream_user, public std::enable_shared_from_this<peer_link> {
public:
  peer_link(
    stream_loops loops, const tcp_options& options, std::shared_ptr<net::channel> c,
    std::vector<std::string> addresses);

  const net::peer_info& peer() const noexcept { return channel_->peer(); }
  const group_id& group() const noexcept { return ours_.group; }
  /// Returns true if a stream could carry a transfer now, or is about to be opened.
  bool reachable() const;

  /// Announces this process to the peer. On the loop.
  void start();
  /// Handles a message of the peer. On the loop.
  /// Errors:  `protocol_error`.
  [[nodiscard]] status on_message(std::span<const std::byte> body);
  /// Takes a stream that was admitted to our group. On the loop.
  [[nodiscard]] status accept(admitted_socket& s);
  expected_group expectation();

  void submit(transfer t, completion<transfer_report> done);
  /// Ends every transfer, each one when no stream touches its memory any more.
  void close(const status& why);

  void chunk_ended(stream& s, std::unique_ptr<chunk> c, status outcome) override;
  void stream_closed(
    stream& s, std::vector<std::unique_ptr<chunk>> unfinished, const status& why) override;

private:
  struct slot {
    std::shared_ptr<stream> s; // null: none is open
    std::uint64_t serial = 0;
    std::uint32_t chunks = 0; // requested and not ended
    std::uint64_t bytes = 0;
    std::uint32_t backoff_ms = 0;
    std::uint32_t failures = 0;         // failures to open it, in a row
    std::optional<stall_watch> watch{}; // watches `s`
  };
  struct broken_stream {
    std::vector<std::unique_ptr<chunk>> chunks;
    std::uint32_t looks = 0;
  };
  struct next_chunk {
    std::unique_ptr<chunk> what;
    std::shared_ptr<stream> on;
    std::size_t slot = 0;
  };
  using jobs = std::deque<std::shared_ptr<job>>;

  // Opening streams:
  status on_announce(announce theirs);
  std::vector<net::socket_address> addresses_of(const announce& theirs) const;
  void open(std::size_t slot);
  void open_later(std::size_t slot, bool after_failure);
  void not_opened(std::size_t slot, const status& why);
  [[nodiscard]] status add(std::size_t slot, admitted_socket& s);
  result<std::unique_ptr<bulk_socket>> bytes_of(admitted_socket& s) const;
  void give_up(const status& why);
  template <class Message>
  void send(message_kind kind, const Message& m);

  // Handing out chunks:
  void feed();
  std::optional<next_chunk> pick();
  std::optional<next_chunk> take_from(jobs& queue, std::size_t slot);
  std::optional<std::size_t> small_slot() const;
  std::optional<std::size_t> bulk_slot() const;
  bool has_room(const slot& s) const noexcept;
  bool is_small(const job& j) const noexcept;
  void queue(std::shared_ptr<job> j, bool first);
  void on_gone(std::uint64_t serial);
  void on_lost(std::uint64_t serial);
  void ask_again(std::vector<std::unique_ptr<chunk>> chunks);

  // Watching streams:
  void look_later();
  void look();
  slot* slot_of(std::uint64_t serial);

  const stream_loops loops_;
  const tcp_options options_;
  const std::shared_ptr<net::channel> channel_;
  announce ours_;
  const std::uint32_t look_ms_;

  mutable std::mutex mutex_; // guards the members below
  bool closed_ = false;
  status why_;
  bool announced_ = false; // the peer has announced itself
  announce theirs_;
  bool we_open_ = false;
  std::vector<net::socket_address> towards_;
  net::channel_key key_{}; // for streams towards the peer
  bool hopeful_ = true;    // transfers may wait for a stream to be opened
  status last_failure_;    // the last failure to open a stream
  bool opened_once_ = false;
  std::uint32_t looks_without_stream_ = 0;
  std::uint64_t next_serial_ = 1;
  std::vector<slot> slots_;
  jobs small_;
  jobs turns_;
  std::uint64_t transfers_ = 0;                   // not ended
  std::map<std::uint64_t, broken_stream> broken_; // by serial, until the peer sends `gone`
  std::set<std::uint64_t> to_confirm_;            // serials for which the peer waits for our `gone`
};

} // namespace millrace::transport::tcp
