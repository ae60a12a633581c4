// Connects one stream to a peer and has it admitted.
// Used by `peer_link`.
#pragma once

#include <millrace/net/loop/io_loop.hpp>
#include <millrace/net/socket/socket_address.hpp>
#include <millrace/net/socket/unique_fd.hpp>
#include <millrace/transport/tcp/stream_proof.hpp>
#include <millrace/transport/tcp/tcp_options.hpp>

#include <memory>
#include <vector>

namespace millrace::transport::tcp {

/// A socket whose two sides have proved which group it belongs to.
struct admitted_socket {
  net::unique_fd fd;
  stream_claim as;
  net::channel_key key{}; // for this stream alone
};

/// Sets the options of a stream's socket.
void prepare_socket(int fd, const tcp_options& options);

/// Tries the addresses one after the other. Call it on the loop; `done` runs there, too. If the
/// opening is dropped before `done` has run, its socket closes.
/// Errors:  `unavailable` naming the address, `deadline_exceeded`, `permission_denied`.
void open_stream(
  const std::shared_ptr<net::io_loop>& loop, const tcp_options& options,
  std::vector<net::socket_address> addresses, const net::channel_key& key, const stream_claim& as,
  completion<std::shared_ptr<admitted_socket>> done);

} // namespace millrace::transport::tcp
