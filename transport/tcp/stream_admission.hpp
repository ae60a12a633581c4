// Admission of bulk streams: every socket must prove in time which peer opened it. Made by the tcp
// driver.
#pragma once

#include <millrace/core/clock.hpp>
#include <millrace/net/channel/newcomers.hpp>
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

/// A group for which streams may come.
struct expected_group {
  net::channel_key key{};
  /// Takes an admitted stream. Called on the loop. Errors are logged as refusals, except `busy` and
  /// `peer_lost`, since a member is no stranger.
  std::function<status(std::shared_ptr<admitted_socket>)> take;
};

/// Accepts sockets and checks to which group they belong.
///
/// Every process can connect. So the sockets that have not proved themselves are `newcomers`, and
/// each has a deadline.
///
/// A member may end while its streams are on their way. This is not logged as a refusal, which is
/// for strangers.
/// Threads: the loop; `listen` and `close` any.
class stream_admission : public net::stream_acceptor,
                         public std::enable_shared_from_this<stream_admission> {
public:
  stream_admission(
    std::shared_ptr<net::io_loop> loop, const tcp_options& options,
    std::function<std::optional<expected_group>(const group_id&)> find)
    : loop_(std::move(loop)), options_(options), find_(std::move(find)),
      newcomers_(options.admissions_max, options.admissions_per_source_max) {}

  /// Accepts streams at an address. Returns the address with its real port.
  /// Errors:  `invalid_argument`; `already_exists` when another process has the port;
  ///          `unavailable`; `io_error`.
  result<net::socket_address> listen(const std::string& address);
  void receive(net::unique_fd fd, const net::socket_address& from) override;
  /// Notes that the channel of this group has closed. Streams of the group that come later are
  /// closed.
  void retire(const group_id& group);
  /// Refuses all streams from now on.
  void close();

private:
  struct newcomer;
  struct retired_group {
    group_id group{};
    time_point until;
  };
  void on_bytes(std::uint64_t number);
  status on_message(newcomer& s);
  status on_claim(newcomer& s);
  status on_proof(newcomer& s);
  bool is_retired(const group_id& group);
  void refuse(std::uint64_t number, const status& why);
  void remove(std::uint64_t number);

  const std::shared_ptr<net::io_loop> loop_;
  const tcp_options options_;
  std::function<std::optional<expected_group>(const group_id&)> find_; // null once closed
  std::vector<std::shared_ptr<net::acceptor>> acceptors_;
  net::newcomers newcomers_;
  std::map<net::newcomers::number, std::shared_ptr<newcomer>> sockets_;
  std::deque<retired_group> retired_; // the oldest first
};

} // namespace millrace::transport::tcp
