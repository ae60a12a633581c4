// The operations of one kind. Some run, some wait, and more are refused. Owned by a provider's
// actors.
#pragma once

#include <millrace/actors/operation.hpp>

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>

namespace millrace::actors {

/// Runs operations within its bounds. Used inside one actor only.
class operation_lane {
public:
  /// `busy` is called when an operation stays here whose deadline must be watched.
  operation_lane(
    std::string provider, std::uint32_t running_max, std::uint32_t queued_max,
    std::function<void()> busy)
    : provider_(std::move(provider)), running_max_(running_max), queued_max_(queued_max),
      busy_(std::move(busy)) {}

  void start(std::shared_ptr<operation> op);
  /// Drops the operations that have answered, and starts those that wait.
  void reap();
  void give_up_late(time_point now);
  void give_up_all(const status& why);

  bool empty() const noexcept { return running_.empty() && waiting_.empty(); }
  std::size_t waiting() const noexcept { return waiting_.size(); }
  /// Returns how many running operations have not answered. Those that have stay until `reap`.
  std::uint64_t unanswered() const;

private:
  void run(std::shared_ptr<operation> op);

  std::string provider_;
  std::uint32_t running_max_;
  std::uint32_t queued_max_;
  std::function<void()> busy_;
  std::list<std::shared_ptr<operation>> running_;
  std::deque<std::shared_ptr<operation>> waiting_;
};

} // namespace millrace::actors
