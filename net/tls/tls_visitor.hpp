// One accepted connection that has not proved itself yet.
// Made by `tls_door`, which bounds how many there are.
#pragma once

#include <millrace/net/channel/connection.hpp>
#include <millrace/net/tls/tls_door.hpp>
#include <millrace/net/tls/tls_handshake.hpp>

#include <memory>
#include <string>

namespace millrace::net {

/// A connection until it has proved itself: first its first byte, then TLS, then the channel's handshake.
/// Kept alive by whatever it waits for on the loop; the door's list does not keep it.
class tls_visitor : public std::enable_shared_from_this<tls_visitor> {
public:
  tls_visitor(std::shared_ptr<tls_door> door, unique_fd fd, const socket_address& from);
  tls_visitor(const tls_visitor&) = delete;
  ~tls_visitor() { door_->forget(*this); }

  void start();
  /// Ends it with a line in the log.
  void refuse(const status& why);

  const std::string source;
  tls_door::visitors::iterator place; // in the door's list, while `listed`
  bool listed = false;

private:
  void on_first_byte();
  void begin_tls();
  void begin_channel(std::unique_ptr<tls_stream> stream);
  void end(const status& why);
  void leave();

  const std::shared_ptr<tls_door> door_;
  unique_fd fd_;
  const socket_address from_;
  const time_point began_ = steady_clock::now();
  std::uint64_t timer_ = 0;
  bool over_ = false;
  std::weak_ptr<tls_handshake> handshake_;
  std::weak_ptr<connection> connection_;
};

} // namespace millrace::net
