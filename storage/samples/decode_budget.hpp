// Bounds what several threads have at once, such as the pixels of images that are being decoded.
// Used by the reader that decodes samples.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>

namespace millrace::storage::samples {

/// An amount that threads share. Who wants more than is free waits until others have ended. Threads
/// are served in the order in which they came, so large amounts are not overtaken for ever. Who
/// wants more than there is at all gets all of it, alone.
///
/// A thread that has a share must wait for nothing that another one with a share has: then each
/// wait ends with the work of the others.
/// Threads: any.
class decode_budget {
public:
  /// Gives the amount back at its end.
  class share {
  public:
    share(decode_budget& of, std::uint64_t amount) noexcept : of_(&of), amount_(amount) {}
    share(share&& other) noexcept
      : of_(std::exchange(other.of_, nullptr)), amount_(other.amount_) {}
    share& operator=(share&&) = delete;
    ~share() {
      if (of_)
        of_->give_back(amount_);
    }

  private:
    decode_budget* of_;
    std::uint64_t amount_;
  };

  explicit decode_budget(std::uint64_t all) noexcept : all_(all), free_(all) {}

  [[nodiscard]] share take(std::uint64_t wanted) {
    wanted = std::min(wanted, all_);
    std::unique_lock guard{mutex_};
    auto turn = came_++;
    changed_.wait(guard, [&] { return turn == served_ && wanted <= free_; });
    ++served_;
    free_ -= wanted;
    changed_.notify_all();
    return share{*this, wanted};
  }

private:
  void give_back(std::uint64_t amount) noexcept {
    std::lock_guard guard{mutex_};
    free_ += amount;
    changed_.notify_all();
  }

  const std::uint64_t all_;
  std::mutex mutex_; // for what follows
  std::condition_variable changed_;
  std::uint64_t free_;
  std::uint64_t came_ = 0, served_ = 0;
};

} // namespace millrace::storage::samples
