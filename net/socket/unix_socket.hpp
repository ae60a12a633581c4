// Unix stream sockets: addresses, credentials, bytes with descriptors.
// Used by `connect`, listeners and channels.
#pragma once

#include <millrace/core/status.hpp>
#include <millrace/net/channel/byte_stream.hpp>
#include <millrace/net/socket/unique_fd.hpp>

#include <sys/un.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace millrace::net {

/// Reads "unix:/absolute/path".
/// Errors: `invalid_argument` for another scheme, a relative path, or a path too long for a socket.
result<sockaddr_un> parse_unix_address(const std::string& address);

/// Makes a non-blocking stream socket that exec closes.
result<unique_fd> make_unix_socket();

/// The process at the other end, as the kernel reports it.
struct peer_credentials {
  std::uint32_t pid = 0;
  std::uint32_t uid = 0;
};
result<peer_credentials> credentials_of(int fd);

inline constexpr std::size_t fds_at_once_max = 64;

/// Reads bytes and appends the descriptors that came with them. 0 bytes without an error mean the
/// end of the stream.
io_outcome receive_with_fds(int fd, std::span<std::byte> room, std::vector<unique_fd>& fds);

/// Writes as much as the socket takes; `fds` travel with the first byte.
io_outcome send_with_fds(int fd, std::span<const iovec> parts, std::span<const int> fds) noexcept;

} // namespace millrace::net
