// Block-wise checksums of tensors (xxHash3, 64 bits): computed on store, verified on load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace millrace {

/// Bytes of a tensor covered by one digest. Blocks start at the tensor's first byte; the last one
/// may be shorter; a tensor without bytes has none. Part of every stored format.
inline constexpr std::uint64_t digest_block_bytes = 256 * 1024;

/// xxHash3-64 of `size_bytes` at `data`, with the widest vectors this processor has.
std::uint64_t digest(const void* data, std::size_t size_bytes) noexcept;

/// The same value, computed piece by piece while the bytes pass.
class running_digest {
public:
  running_digest() noexcept;
  ~running_digest();
  running_digest(const running_digest&) = delete;
  running_digest& operator=(const running_digest&) = delete;

  void add(const void* data, std::size_t size_bytes) noexcept;
  std::uint64_t value() const noexcept;

private:
  void* state_; // the library's, which does not tell its size
};

/// Number of digests of a tensor of `size_bytes`.
constexpr std::uint64_t digest_count(std::uint64_t size_bytes) noexcept {
  return (size_bytes + digest_block_bytes - 1) / digest_block_bytes;
}

} // namespace millrace
