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
  ~tensor_blocks() {
    account_->give_back(room_bytes_);
    descriptions_->give_back(metadata_bytes_);
  }
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
  std::uint64_t size_bytes() const noexcept { return room_bytes_ + metadata_bytes_; }
  std::uint64_t metadata_bytes() const noexcept { return metadata_bytes_; }

private:
  tensor_blocks(std::shared_ptr<space_account> account, std::shared_ptr<space_account> descriptions)
    : account_(std::move(account)), descriptions_(std::move(descriptions)) {}

  status count(std::uint64_t room, std::uint64_t metadata, bool anyway);
  status place(memory_source& memory, std::size_t first, std::size_t last);

  std::shared_ptr<space_account> account_;
  std::shared_ptr<space_account> descriptions_;
  std::uint64_t room_bytes_ = 0;
  std::uint64_t metadata_bytes_ = 0;
  std::vector<memory_block> blocks_;
  std::vector<piece> pieces_;
};

/// Returns the bytes that the tensors take in a bucket of this kind.
std::uint64_t room_bytes(const std::vector<std::uint64_t>& tensor_bytes) noexcept;

} // namespace millrace::storage::memory
