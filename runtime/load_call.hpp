// Memory of the caller that a provider fills: exposed exactly as long as the operation runs. Internal: needs CAF.
#pragma once

#include <millrace/core/tensor_view.hpp>
#include <millrace/runtime/caller.hpp>
#include <millrace/transport/region.hpp>

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

namespace millrace::runtime {

/// What was asked for, or the client's request timeout.
std::uint32_t timeout_ms(const client_core& core, std::chrono::milliseconds wanted);

/// One load under way: the targets stay exposed until the outcome is known.
class load_call : public std::enable_shared_from_this<load_call> {
public:
  /// Few bytes come inside the reply: then nothing is exposed.
  static result<std::shared_ptr<load_call>> make(
    std::shared_ptr<client_core> core, std::vector<tensor_view> targets);

  /// What goes into the request: empty when the bytes come inside the reply.
  bulk_handle target() const { return eager_ ? bulk_handle{} : region_.handle(); }
  future<actors::load_receipt> outcome() const { return done_.get_future(); }

  void finish(result<actors::load_receipt> outcome);

private:
  load_call(std::shared_ptr<client_core> core, std::vector<tensor_view> targets)
    : core_(std::move(core)), done_(core_->make_promise<actors::load_receipt>()),
      targets_(std::move(targets)) {}

  result<actors::load_receipt> scatter(actors::load_receipt r) const;

  std::shared_ptr<client_core> core_;
  promise<actors::load_receipt> done_;
  transport::region region_;
  std::vector<tensor_view> targets_;
  bool eager_ = false;
};

/// Sends a request whose `target` shall be these views. One selection per view.
template <class Handle, class Request>
future<actors::load_receipt> load_into(
  const std::shared_ptr<client_core>& core, const Handle& whom, Request request,
  std::vector<tensor_view> targets) {
  auto call = load_call::make(core, std::move(targets));
  if (!call)
    return ready_future<actors::load_receipt>(fail(call.error()));
  request.target = (*call)->target();
  auto out = (*call)->outcome();
  core->ask<Handle, Request, actors::load_receipt>(
    whom, std::move(request),
    [call = *call](result<actors::load_receipt> r) { call->finish(std::move(r)); });
  return out;
}

} // namespace millrace::runtime
