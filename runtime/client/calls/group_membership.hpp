// One process in a group: it joins, hears of the end of its epoch, goes on in the next, and leaves.
// Internal, behind `broadcast_group`; needs CAF.
#pragma once

#include <millrace/actors/broadcast/group_messages.hpp>
#include <millrace/runtime/client/broadcast_group.hpp>
#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/client/calls/group_lane.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace millrace::runtime {

/// Has one lane for each epoch.
///
/// It holds the client as the program does not, see `client_core`: its owner ends it by `close`.
/// Threads: any.
class group_membership : public std::enable_shared_from_this<group_membership> {
public:
  /// Errors:  those of the node's keeper; `invalid_argument`; `unsupported` if the memory of the
  ///          ring cannot be mapped here; `protocol_error` for an answer that is wrong.
  static void join(
    const std::shared_ptr<client_core>& core, const std::string& name, const group_options& options,
    completion<std::shared_ptr<group_membership>> done);

  future<broadcast_receipt> broadcast(
    const std::vector<tensor_view>& tensors, const broadcast_options& options);
  future<void> renew(std::chrono::milliseconds timeout);
  future<void> leave();
  void close();

  const std::string& name() const noexcept { return name_; }
  std::uint32_t rank() const noexcept { return options_.rank; }
  std::uint64_t epoch() const;
  std::vector<group_rank> members() const;

private:
  group_membership(
    std::shared_ptr<client_core> core, std::string name, group_options options, std::string node)
    : core_(std::move(core)), name_(std::move(name)), options_(std::move(options)),
      node_(std::move(node)) {}

  template <class Request>
  auto ask(Request request) const;
  void enter(const actors::group_epoch& epoch, completion<void> done);
  status check(const actors::group_epoch& epoch) const;
  result<void> take(
    std::uint64_t epoch, lane_members who, std::unique_ptr<transport::chunk_ring> ring);
  void hear(std::uint64_t epoch);
  void on_news(std::uint64_t epoch, const result<actors::group_news>& news);
  std::shared_ptr<group_lane> lane() const;
  future<void> end(const status& why);
  status explained(const status& why) const;
  status left() const;
  status renewed() const;

  const std::shared_ptr<client_core> core_;
  const std::string name_;
  const group_options options_;
  const std::string node_;

  mutable std::mutex mutex_; // of the members below
  std::uint64_t lease_ = 0, epoch_ = 0, closing_ = 0;
  std::shared_ptr<group_lane> lane_; // null: none has begun
  bool renewing_ = false, left_ = false;
};

} // namespace millrace::runtime
