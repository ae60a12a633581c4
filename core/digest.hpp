// Checksums of tensors, block by block (xxHash3, 64 bits). Computed on store, verified on load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace millrace {

/// The bytes of a tensor that one digest covers. Blocks start at the tensor's first byte, and the
/// last one may be shorter. A tensor without bytes has no digest. Part of every stored format.
inline constexpr std::uint64_t digest_block_bytes = 256 * 1024;

/// Returns the xxHash3-64 of `size_bytes` at `data`, computed with the widest vectors of the
/// processor.
std::uint64_t digest(const void* data, std::size_t size_bytes) noexcept;

/// Computes the same value from bytes that arrive piece by piece.
class running_digest {
public:
  running_digest() noexcept;
  ~running_digest();
  running_digest(const running_digest&) = delete;
  running_digest& operator=(const running_digest&) = delete;

  void add(const void* data, std::size_t size_bytes) noexcept;
  /// Adds the length of a text and its characters.
  void add_text(std::string_view text) noexcept;
  std::uint64_t value() const noexcept;

private:
  void* state_; // allocated by the library, which hides its size
};

/// Returns the number of digests of a tensor of `size_bytes`.
constexpr std::uint64_t digest_count(std::uint64_t size_bytes) noexcept {
  return (size_bytes + digest_block_bytes - 1) / digest_block_bytes;
}

} // namespace millrace
