// What is taken of a bucket's capacity. Kept by kinds that count it themselves, and by their
// leases.
#pragma once

#include <millrace/core/status.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

namespace millrace::storage {

/// For what is only counted.
inline constexpr std::uint64_t unbounded = std::numeric_limits<std::uint64_t>::max();

/// Counts bytes against a bound. Leases keep it, so it may outlive the bucket. Threads: any.
class space_account {
public:
  /// `whole`: what is taken here is taken there, too; may be null. `key`: of the configuration, for
  /// errors.
  explicit space_account(
    std::uint64_t capacity_bytes, std::shared_ptr<space_account> whole = nullptr,
    const char* key = "capacity")
    : capacity_(capacity_bytes), whole_(std::move(whole)), key_(key) {}

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
    auto outcome = whole_ ? whole_->take(size_bytes) : status{};
    if (!outcome.ok())
      used_ -= size_bytes;
    return outcome;
  }
  /// Takes bytes that are taken in fact, even beyond the capacity: those that were there when the
  /// bucket was opened.
  void take_anyway(std::uint64_t size_bytes) noexcept {
    used_ += size_bytes;
    if (whole_)
      whole_->take_anyway(size_bytes);
  }
  void give_back(std::uint64_t size_bytes) noexcept {
    used_ -= size_bytes;
    if (whole_)
      whole_->give_back(size_bytes);
  }

  std::uint64_t capacity_bytes() const noexcept { return capacity_; }
  std::uint64_t used_bytes() const noexcept { return used_; }
  std::uint64_t free_bytes() const noexcept {
    return capacity_ - std::min(capacity_, used_.load());
  }

  /// Returns the error of `take`.
  status full(std::uint64_t asked_bytes) const {
    return {errc::no_space,
            "asked for {} bytes, free are {} of {}; erase models, or raise the bucket's {}",
            asked_bytes,
            free_bytes(),
            capacity_,
            key_};
  }

private:
  std::uint64_t capacity_;
  std::shared_ptr<space_account> whole_;
  const char* key_;
  std::atomic<std::uint64_t> used_ = 0;
};

/// Bytes of an account, which are given back when the lease is destroyed. Without an account it
/// counts nothing.
class account_lease {
public:
  account_lease() = default;
  /// Takes bytes that are taken in fact, see `take_anyway`.
  account_lease(std::shared_ptr<space_account> account, std::uint64_t size_bytes)
    : account_(std::move(account)), size_bytes_(size_bytes) {
    if (account_)
      account_->take_anyway(size_bytes_);
  }
  account_lease(account_lease&& other) noexcept { swap(other); }
  account_lease& operator=(account_lease&& other) noexcept {
    swap(other);
    return *this;
  }
  ~account_lease() {
    if (account_)
      account_->give_back(size_bytes_);
  }

  /// `anyway`: even beyond the capacity. Errors: those of `space_account::take`.
  static result<account_lease> take(
    std::shared_ptr<space_account> account, std::uint64_t size_bytes, bool anyway) {
    if (anyway)
      return account_lease{std::move(account), size_bytes};
    account_lease taken;
    if (auto bad = account->take(size_bytes); !bad.ok())
      return fail(std::move(bad));
    taken.account_ = std::move(account);
    taken.size_bytes_ = size_bytes;
    return taken;
  }

  std::uint64_t size_bytes() const noexcept { return size_bytes_; }

private:
  void swap(account_lease& other) noexcept {
    std::swap(account_, other.account_);
    std::swap(size_bytes_, other.size_bytes_);
  }

  std::shared_ptr<space_account> account_;
  std::uint64_t size_bytes_ = 0;
};

} // namespace millrace::storage
