// The file of a listening Unix socket, and the lock that decides which process may listen there.
// Used by `listener::open`.
#pragma once

#include <millrace/core/status.hpp>
#include <millrace/net/socket/unique_fd.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace millrace::net {

/// The files of a bound, listening socket. Destroying this removes both.
class socket_file {
public:
  /// Makes the directory if it is missing (mode 0700; 0710 or 0711 for a socket that the group or
  /// all users may write to), takes the lock, replaces the socket of a dead process, and binds.
  /// Logs a warning if users who may write to the socket may not enter a directory that is there.
  /// Errors: `already_exists` when a live process listens there or the path is not a socket.
  static result<std::unique_ptr<socket_file>> bind(const std::string& address, std::uint32_t mode);

  ~socket_file();

  /// The socket, once.
  unique_fd take_socket() noexcept { return std::move(socket_); }
  /// Removes the files; the socket itself stays open.
  void remove() noexcept;

private:
  std::string path_;
  unique_fd lock_;
  unique_fd socket_;
};

} // namespace millrace::net
