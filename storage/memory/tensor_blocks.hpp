// The memory of one model in a memory bucket. Taken by a reservation, kept by the version
// and its readers.
#pragma once

#include <millrace/core/memory.hpp>
#include <millrace/storage/bucket.hpp>
#include <millrace/storage/space_account.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace millrace::storage::memory {

/// The tensors at their addresses. The memory is returned when the last copy of the pointer is
/// destroyed.
class tensor_blocks {
public:
  tensor_blocks(const tensor_blocks&) = delete;
  tensor_blocks& operator=(const tensor_blocks&) = delete;

  /// Takes one block for all tensors, each on a 64-byte border. If the memory is too fragmented, it
  /// takes a block for each half of the tensors, and so on down to single tensors. The model's
  /// `metadata_bytes` are counted as descriptions; `anyway`: all is taken even beyond the capacity.
  ///
  /// Errors: `no_space` with the bytes asked for, the bytes free, and the capacity.
  static result<std::shared_ptr<tensor_blocks>> take(
    memory_source& memory, std::shared_ptr<space_account> account,
    std::shared_ptr<space_account> descriptions, const std::vector<std::uint64_t>& tensor_bytes,
    std::uint64_t metadata_bytes, bool anyway = false);

  /// Returns one piece for every tensor that has bytes, in order.
  const std::vector<piece>& pieces() const noexcept { return pieces_; }
  /// Returns what is counted: the tensors with their padding, and the metadata.
  std::uint64_t size_bytes() const noexcept { return room_.size_bytes() + metadata_bytes(); }
  std::uint64_t metadata_bytes() const noexcept { return metadata_.size_bytes(); }

private:
  tensor_blocks(account_lease room, account_lease metadata)
    : room_(std::move(room)), metadata_(std::move(metadata)) {}

  status place(memory_source& memory, std::size_t first, std::size_t last);

  account_lease room_;
  account_lease metadata_;
  std::vector<memory_block> blocks_;
  std::vector<piece> pieces_;
};

/// Returns the bytes that the tensors take in a bucket of this kind.
std::uint64_t room_bytes(const std::vector<std::uint64_t>& tensor_bytes) noexcept;

} // namespace millrace::storage::memory
