// The operations of one kind. Some run, some wait, and more are refused. Owned by a provider's
// actors.
#pragma once

#include <millrace/actors/operation.hpp>

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>

namespace millrace::actors {

/// Runs operations within its bounds. Processes share the places, those that run and those that
/// wait, as `fair_shares` says, and take turns. Used inside one actor only.
class operation_lane {
public:
  /// `busy` is called when an operation stays here whose deadline must be watched.
  operation_lane(
    std::string provider, std::uint32_t running_max, std::uint32_t queued_max,
    std::function<void()> busy)
    : provider_(std::move(provider)), may_run_(running_max), may_wait_(queued_max),
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
  struct entry {
    party who;
    std::shared_ptr<operation> op;
  };

  void run(entry e);
  status refusal(const party& who) const;

  std::string provider_;
  fair_shares may_run_;
  fair_shares may_wait_;
  std::function<void()> busy_;
  std::list<entry> running_;
  fair_queue<std::shared_ptr<operation>> waiting_;
};

} // namespace millrace::actors
