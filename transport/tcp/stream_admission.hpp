// Admission of bulk streams: every socket must prove in time which peer opened it. Made by the tcp driver.
#pragma once

#include <millrace/core/clock.hpp>
#include <millrace/net/channel/stream_acceptor.hpp>
#include <millrace/net/loop/io_loop.hpp>
#include <millrace/net/socket/acceptor.hpp>
#include <millrace/transport/tcp/stream_opening.hpp>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace millrace::transport::tcp {

/// Who may be expecting a stream.
struct expected_group {
  net::channel_key key{};
  /// On the loop. Errors are logged as refusals, but for `busy` and `peer_lost`: a member is no stranger.
  std::function<status(std::shared_ptr<admitted_socket>)> take;
};

/// *Problem*: anybody can connect. So until it has proved itself, a socket costs one entry of a bounded table and has a
/// deadline. One source gets a part of the table only. When the table is full, the source with the most entries loses
/// its oldest one.
///
/// A member may end while its streams are on their way. That is no refusal: refusals are for strangers.
///
/// Threads: on the loop, but for `listen` and `close`.
class stream_admission : public net::stream_acceptor,
                         public std::enable_shared_from_this<stream_admission> {
public:
  stream_admission(
    std::shared_ptr<net::io_loop> loop, const tcp_options& options,
    std::function<std::optional<expected_group>(const group_id&)> find)
    : loop_(std::move(loop)), options_(options), find_(std::move(find)) {}

  /// Accepts streams at an address; returns it with its real port.
  /// Errors: `invalid_argument`; `already_exists` when another process has the port; `unavailable`; `io_error`.
  result<net::socket_address> listen(const std::string& address);
  void receive(net::unique_fd fd, const net::socket_address& from) override;
  /// The channel of this group has closed: its streams are closed when they come.
  void retire(const group_id& group);
  /// Refuses all streams from now on.
  void close();

private:
  struct unproven_stream;
  struct retired_group {
    group_id group{};
    time_point until;
  };
  void make_room();
  std::size_t unproven_of(const std::string& source) const;
  void on_bytes(std::uint64_t number);
  status on_message(unproven_stream& s);
  status on_admission(unproven_stream& s);
  status on_proof(unproven_stream& s);
  bool is_retired(const group_id& group);
  void refuse(std::uint64_t number, const status& why);
  void remove(std::uint64_t number);

  const std::shared_ptr<net::io_loop> loop_;
  const tcp_options options_;
  std::function<std::optional<expected_group>(const group_id&)> find_; // null once closed
  std::vector<std::shared_ptr<net::acceptor>> acceptors_;
  std::uint64_t next_ = 1;
  std::map<std::uint64_t, std::shared_ptr<unproven_stream>> unproven_; // the oldest first
  std::deque<retired_group> retired_;                                  // the same
};

} // namespace millrace::transport::tcp
