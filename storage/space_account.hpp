// What is taken of a bucket's capacity. Kept by kinds that count it themselves, and by their
// leases.
#pragma once

#include <millrace/core/status.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>

namespace millrace::storage {

/// Counts bytes against a bound. Leases keep it, so it may outlive the bucket. Threads: any.
class space_account {
public:
  explicit space_account(std::uint64_t capacity_bytes) : capacity_(capacity_bytes) {}

  /// Takes bytes, all or none. Errors: `no_space` with the bytes asked for, the bytes free, and the
  /// capacity.
  [[nodiscard]] status take(std::uint64_t size_bytes) {
    if (size_bytes == 0)
      return {};
    auto used = used_.load();
    do {
      if (size_bytes > capacity_ || used > capacity_ - size_bytes)
        return full(size_bytes);
    } while (!used_.compare_exchange_weak(used, used + size_bytes));
    return {};
  }
  /// Takes bytes that are taken in fact, even beyond the capacity: those that were there when the
  /// bucket was opened.
  void take_anyway(std::uint64_t size_bytes) noexcept { used_ += size_bytes; }
  void give_back(std::uint64_t size_bytes) noexcept { used_ -= size_bytes; }

  std::uint64_t capacity_bytes() const noexcept { return capacity_; }
  std::uint64_t used_bytes() const noexcept { return used_; }
  std::uint64_t free_bytes() const noexcept {
    return capacity_ - std::min(capacity_, used_.load());
  }

  /// Returns the error of `take`.
  status full(std::uint64_t asked_bytes) const {
    return {
      errc::no_space,
      "asked for {} bytes, free are {} of {}; erase models, or raise the bucket's capacity",
      asked_bytes, free_bytes(), capacity_};
  }

private:
  std::uint64_t capacity_;
  std::atomic<std::uint64_t> used_ = 0;
};

} // namespace millrace::storage
