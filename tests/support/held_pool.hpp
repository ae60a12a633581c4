// Keeps the I/O threads of a bucket busy. Used by tests of what a bucket does without them.
#pragma once

#include <millrace/storage/bucket.hpp>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

namespace millrace::testing {

/// While it exists, the only I/O thread of a bucket runs a completion that does not end.
class held_pool {
public:
  explicit held_pool(storage::bucket& subject) {
    subject.list("", "", 1, [held = held_](const result<std::vector<model_summary>>&) {
      held->begun.set_value();
      held->released.get_future().wait_for(deadline);
    });
    holds_ = held_->begun.get_future().wait_for(deadline) == std::future_status::ready;
  }
  ~held_pool() { held_->released.set_value(); }
  held_pool(const held_pool&) = delete;
  held_pool& operator=(const held_pool&) = delete;

  /// False: the thread did not come.
  bool holds() const noexcept { return holds_; }

private:
  static constexpr std::chrono::seconds deadline{120};

  struct promises {
    std::promise<void> begun, released;
  };
  std::shared_ptr<promises> held_ = std::make_shared<promises>();
  bool holds_ = false;
};

} // namespace millrace::testing
