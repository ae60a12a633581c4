// Loads into the caller's memory, which is exposed exactly as long as the operation runs.
// Internal, used by `repository`, `checkpoints` and `shard_state`; needs CAF.
#pragma once

#include <millrace/actors/load_messages.hpp>
#include <millrace/core/kept_blocks.hpp>
#include <millrace/core/tensor_view.hpp>
#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/client/calls/receipt_check.hpp>
#include <millrace/transport/memory/region.hpp>

#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace millrace::runtime {

/// One load in progress. The targets stay exposed until the outcome is known.
///
/// A load can be cancelled from the start, before `open`: bytes that arrive later are dropped.
class load_call : public std::enable_shared_from_this<load_call> {
public:
  static std::shared_ptr<load_call> make(std::shared_ptr<client_core> core);

  /// Exposes the targets and returns the handle for the request. The handle is empty when the bytes
  /// are few enough to come inside the reply. A receipt about anything but this model, and this
  /// version or step if there is one, is refused.
  /// Errors:  those of views that cannot be written; `cancelled`.
  result<bulk_handle> open(
    const std::string& model, std::optional<std::uint64_t> version,
    std::vector<tensor_view> targets);
  /// Returns the views that `open` was given.
  const std::vector<tensor_view>& targets() const noexcept { return targets_; }
  std::uint64_t size_bytes() const noexcept { return asked_.size_bytes; }
  future<load_receipt> outcome() const { return done_.get_future(); }

  /// Returns a receipt about what was asked for. Errors: `protocol_error`; the outcome's own.
  result<actors::load_reply> check(result<actors::load_reply> outcome) const {
    return check_receipt(std::move(outcome), asked_);
  }
  void finish(result<actors::load_reply> outcome);

private:
  explicit load_call(std::shared_ptr<client_core> core)
    : core_(std::move(core)), done_(core_->make_promise<load_receipt>()) {}

  void give_up();
  status scatter(const small_bytes& eager) const;

  std::shared_ptr<client_core> core_;
  promise<load_receipt> done_;
  std::vector<tensor_view> targets_;
  receipt_subject asked_;
  bool eager_ = false;

  // Locked while this thread exposes or writes to the targets: cancelling waits for that.
  std::mutex mutex_;
  bool given_up_ = false;
  transport::region region_;
};

} // namespace millrace::runtime
