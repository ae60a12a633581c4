// The memory of one model in a memory bucket. Taken by a reservation, kept by the version
// and its readers.
#pragma once

#include <millrace/core/memory.hpp>
#include <millrace/storage/bucket.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace millrace::storage {

/// Counts how much of a bucket's capacity is taken. Rooms keep it, so it may outlive the bucket.
class capacity_account {
public:
  explicit capacity_account(std::uint64_t capacity_bytes) : capacity_(capacity_bytes) {}

  /// Takes a share. Returns false, and takes nothing, when it does not fit.
  bool take(std::uint64_t size_bytes) noexcept;
  void give_back(std::uint64_t size_bytes) noexcept { used_ -= size_bytes; }

  std::uint64_t capacity_bytes() const noexcept { return capacity_; }
  std::uint64_t used_bytes() const noexcept { return used_; }

private:
  std::uint64_t capacity_;
  std::atomic<std::uint64_t> used_ = 0;
};

/// The tensors at their addresses. The memory is returned when the last copy of the pointer is
/// destroyed.
class tensor_blocks {
public:
  ~tensor_blocks() { account_->give_back(size_bytes_); }
  tensor_blocks(const tensor_blocks&) = delete;
  tensor_blocks& operator=(const tensor_blocks&) = delete;

  /// Takes one block for all tensors, each on a 64-byte border. If the memory is too fragmented, it
  /// takes a block for each half of the tensors, and so on down to single tensors.
  ///
  /// Errors: `no_space` with the bytes asked for, the bytes free, and the capacity.
  static result<std::shared_ptr<tensor_blocks>> take(
    memory_source& memory, std::shared_ptr<capacity_account> account,
    const std::vector<std::uint64_t>& tensor_bytes);

  /// Returns one piece for every tensor that has bytes, in order.
  const std::vector<piece>& pieces() const noexcept { return pieces_; }
  std::uint64_t size_bytes() const noexcept { return size_bytes_; }

private:
  tensor_blocks(std::shared_ptr<capacity_account> account, std::uint64_t size_bytes)
    : account_(std::move(account)), size_bytes_(size_bytes) {}

  status place(memory_source& memory, std::size_t first, std::size_t last);

  std::shared_ptr<capacity_account> account_;
  std::uint64_t size_bytes_;
  std::vector<memory_block> blocks_;
  std::vector<piece> pieces_;
};

/// Returns the bytes that the tensors take in a bucket of this kind.
std::uint64_t room_bytes(const std::vector<std::uint64_t>& tensor_bytes) noexcept;

} // namespace millrace::storage
