// The stream of a channel over a Unix socket, with a ring in shared memory once both sides have it.
// Made by `connect` and by listeners.
#pragma once

#include <millrace/net/channel/byte_stream.hpp>
#include <millrace/net/channel/handshake.hpp>

#include <memory>

namespace millrace::net {

std::unique_ptr<byte_stream> make_unix_stream(handshake_side side, unique_fd socket);

} // namespace millrace::net
