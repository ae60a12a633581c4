// Checksums of chunks on the wire.
// Used by `stream` where both sides agreed on them.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>

namespace millrace::transport::tcp {

/// Adds the first `size_bytes` of `parts` to a CRC32C, which begins with 0.
std::uint32_t add_crc32c(
  std::uint32_t sum, std::span<const iovec> parts, std::uint64_t size_bytes) noexcept;

} // namespace millrace::transport::tcp
