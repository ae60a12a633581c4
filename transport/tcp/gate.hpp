// Admits streams: whatever socket comes, it must prove in time whose it is. Made by the tcp driver.
#pragma once

#include <millrace/core/clock.hpp>
#include <millrace/net/channel/stream_door.hpp>
#include <millrace/net/loop/io_loop.hpp>
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

/// *Problem*: anybody can connect. So a socket costs us one entry of a bounded table and a deadline until it has
/// proved itself; one source has a part of the table only, and when it is full the oldest of the source with the most
/// entries goes.
///
/// A member may end while its streams are on their way; nothing of that counts as a refusal, which are for strangers.
///
/// Threads: on the loop, but for `listen` and `close`.
class gate : public net::stream_door, public std::enable_shared_from_this<gate> {
public:
  gate(
    std::shared_ptr<net::io_loop> loop, const tcp_options& options,
    std::function<std::optional<expected_group>(const group_id&)> find)
    : loop_(std::move(loop)), options_(options), find_(std::move(find)) {}

  /// Accepts at an address; the address with its real port.
  /// Errors: `already_exists` when another process has it, `io_error`.
  result<net::socket_address> listen(const std::string& address);
  void receive(net::unique_fd fd, const net::socket_address& from) override;
  /// The channel of this group has closed; streams that come all the same are closed, too.
  void retire(const group_id& group);
  /// Refuses everybody from now on.
  void close();

private:
  struct guest;
  struct open_socket;
  struct retired_group {
    group_id group{};
    time_point until;
  };
  void watch(const std::shared_ptr<open_socket>& s);
  void accept_some(const std::shared_ptr<open_socket>& s);
  void make_room();
  std::size_t guests_of(const std::string& source) const;
  void on_bytes(std::uint64_t number);
  status on_message(guest& g);
  status on_admission(guest& g);
  status on_proof(guest& g);
  bool is_retired(const group_id& group);
  void refuse(std::uint64_t number, const status& why);
  void remove(std::uint64_t number);

  const std::shared_ptr<net::io_loop> loop_;
  const tcp_options options_;
  std::function<std::optional<expected_group>(const group_id&)> find_; // null once closed
  std::vector<std::shared_ptr<open_socket>> listening_;
  std::uint64_t next_ = 1;
  std::map<std::uint64_t, std::shared_ptr<guest>> guests_; // the oldest first
  std::deque<retired_group> retired_;                      // the same
};

} // namespace millrace::transport::tcp
