// Listening sockets and the loop that accepts connections from them.
// Used by the listeners of Unix sockets and of networks, and by drivers for their streams.
#pragma once

#include <millrace/core/status.hpp>
#include <millrace/net/loop/io_loop.hpp>
#include <millrace/net/socket/socket_address.hpp>
#include <millrace/net/socket/unique_fd.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace millrace::net {

/// How many connections the kernel keeps for a listening TCP socket until they are accepted.
inline constexpr int tcp_backlog = 1024;

/// Makes a TCP socket that listens at `at`; "[::]" takes IPv4 connections too. `doing` opens the
/// texts of errors.
/// Errors: `already_exists` when another process has the port; `unavailable` when this machine does
/// not have the address; else as the system says.
result<unique_fd> listen_at(const socket_address& at, const std::string& doing);

/// The address that a socket is bound to, with the port that the system chose where 0 was asked
/// for.
result<socket_address> bound_address(int fd);

/// Accepts connections at listening sockets and hands them to its user.
///
/// *Problem*: a process without free descriptors cannot accept, while the waiting connection keeps
/// the socket readable, so that the loop would spin. The acceptor then logs the shortage, ignores
/// its sockets for a moment, and tries again.
///
/// Threads: the loop.
class acceptor : public std::enable_shared_from_this<acceptor> {
public:
  /// Takes a connected, non-blocking socket. `from` is empty for Unix sockets.
  using receiver = std::function<void(unique_fd fd, const socket_address& from)>;

  /// `address` names the sockets in the log.
  acceptor(
    std::shared_ptr<io_loop> loop, std::string address, std::vector<unique_fd> sockets,
    receiver receive)
    : loop_(std::move(loop)), address_(std::move(address)), sockets_(std::move(sockets)),
      receive_(std::move(receive)) {}

  void open();
  /// Closes the sockets. Idempotent.
  void close();

private:
  void on_ready(int listening);
  bool accept_one(int listening);
  void pause();

  const std::shared_ptr<io_loop> loop_;
  const std::string address_;
  std::vector<unique_fd> sockets_; // empty once closed
  const receiver receive_;
};

} // namespace millrace::net
