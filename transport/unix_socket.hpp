// Unix stream sockets: addresses, credentials, bytes with descriptors.
// Used by `connect`, listeners and channels.
#pragma once

#include <millrace/core/status.hpp>
#include <millrace/transport/unique_fd.hpp>

#include <sys/uio.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace millrace::transport {

/// Reads "unix:/absolute/path".
/// Errors: `invalid_argument` for another scheme, a relative path, or one longer than a socket's
/// may be.
result<sockaddr_un> parse_unix_address(const std::string& address);

/// A stream socket that neither blocks nor survives exec.
result<unique_fd> make_unix_socket();

/// The process that connected (or listens), as the kernel knows it.
struct peer_credentials {
  std::uint32_t pid = 0;
  std::uint32_t uid = 0;
};
result<peer_credentials> credentials_of(int fd);

/// What one read or write of a socket did.
struct io_outcome {
  std::size_t size_bytes = 0;
  int error_number = 0;  // 0 on success; EAGAIN when the socket is not ready
  bool fds_lost = false; // more descriptors came than there was room for
};

inline constexpr std::size_t fds_at_once_max = 64;

/// Reads bytes and appends the descriptors that came with them. 0 bytes without error is the end.
io_outcome receive_with_fds(int fd, std::span<std::byte> room, std::vector<unique_fd>& fds);

/// Writes as much as the socket takes; `fds` travel with the first byte.
io_outcome send_with_fds(int fd, std::span<const iovec> parts, std::span<const int> fds) noexcept;

} // namespace millrace::transport
