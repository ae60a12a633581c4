// The place of each tensor of a layout in the run of all bytes and in the list of all digests. Used
// by operations that read or pull windows.
#pragma once

#include <millrace/core/digest.hpp>
#include <millrace/core/tensor.hpp>
#include <millrace/storage/bucket.hpp>

#include <cstdint>
#include <vector>

namespace millrace::actors {

class layout_offsets {
public:
  layout_offsets() = default;
  /// `tensors` must be valid.
  explicit layout_offsets(const layout& tensors) {
    for (auto& tensor : tensors.tensors) {
      bytes_at_.push_back(size_bytes_);
      digests_at_.push_back(digests_);
      auto bytes = *millrace::size_bytes(tensor);
      size_bytes_ += bytes;
      digests_ += digest_count(bytes);
    }
  }

  std::uint64_t size_bytes() const noexcept { return size_bytes_; }
  std::uint64_t digests() const noexcept { return digests_; }

  /// Returns the offset of the piece's first byte in the run of all tensors, one after the other.
  std::uint64_t byte_of(const storage::piece& p) const {
    return bytes_at_[p.tensor] + p.tensor_offset;
  }
  /// Returns the place of the piece's first digest.
  std::uint64_t digest_of(const storage::piece& p) const {
    return digests_at_[p.tensor] + p.tensor_offset / digest_block_bytes;
  }

private:
  std::vector<std::uint64_t> bytes_at_;
  std::vector<std::uint64_t> digests_at_;
  std::uint64_t size_bytes_ = 0;
  std::uint64_t digests_ = 0;
};

} // namespace millrace::actors
