// The facade of groups.
#include <millrace/core/model.hpp>
#include <millrace/runtime/client/broadcast_group.hpp>
#include <millrace/runtime/client/calls/group_membership.hpp>
#include <millrace/runtime/client/calls/stream_view.hpp>
#include <millrace/runtime/client/client.hpp>

namespace millrace {

future<broadcast_group> client::join_group(
  const std::string& name, const group_options& options) const {
  if (auto refused = core_->refused<broadcast_group>(name))
    return *refused;
  auto done = core_->make_promise<broadcast_group>();
  runtime::group_membership::join(
    core_, name, options, [done](const result<std::shared_ptr<runtime::group_membership>>& joined) {
      done.set(
        joined.map([](auto& one) { return broadcast_group{runtime::held_by_program(one)}; }));
    });
  return done.get_future();
}

const std::string& broadcast_group::name() const noexcept { return of_->name(); }
std::uint32_t broadcast_group::rank() const noexcept { return of_->rank(); }
std::uint64_t broadcast_group::epoch() const { return of_->epoch(); }
std::vector<group_rank> broadcast_group::members() const { return of_->members(); }

future<broadcast_receipt> broadcast_group::broadcast(
  std::vector<tensor_view> tensors, const broadcast_options& options) const {
  return of_->broadcast(tensors, options);
}
future<void> broadcast_group::renew(std::chrono::milliseconds timeout) const {
  return of_->renew(timeout);
}
future<void> broadcast_group::leave() const { return of_->leave(); }

} // namespace millrace
