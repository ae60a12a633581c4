// Exposing, withdrawing, and scattering what came inside a reply.
#include <millrace/runtime/load_call.hpp>

namespace millrace::runtime {

using actors::load_receipt;

std::uint32_t timeout_ms(const client_core& core, std::chrono::milliseconds wanted) {
  auto otherwise = core.runs_on()->settings().client.request_timeout_ms;
  return static_cast<std::uint32_t>(wanted.count() > 0 ? wanted.count() : otherwise);
}

result<std::shared_ptr<load_call>> load_call::make(
  std::shared_ptr<client_core> core, std::vector<tensor_view> targets) {
  std::shared_ptr<load_call> call{new load_call{std::move(core), std::move(targets)}};
  auto list = transport::gather_list::of(call->targets_, access_mode::write);
  if (!list)
    return fail(list.error());
  call->eager_ = list->on_host() && list->size_bytes() <= call->core_->where().eager_bytes_max;
  if (call->eager_)
    return call;
  call->region_ = transport::expose(std::move(*list), access_mode::write);
  call->done_.on_cancel([weak = std::weak_ptr{call}] {
    if (auto c = weak.lock())
      c->region_.withdraw();
  });
  return call;
}

void load_call::finish(result<load_receipt> outcome) {
  // After this nobody writes to the caller's memory any more.
  region_.withdraw();
  if (outcome && eager_)
    outcome = scatter(std::move(*outcome));
  done_.set(std::move(outcome));
}

result<load_receipt> load_call::scatter(load_receipt r) const {
  auto list = transport::gather_list::of(targets_, access_mode::write);
  if (!list)
    return fail(list.error());
  if (list->size_bytes() != r.eager.size())
    return fail(errc::protocol_error, "the provider sent another number of bytes than asked for");
  list->write(
    0, reinterpret_cast<const std::byte*>(r.eager.data()), r.eager.size(),
    transport::store_mode::cached);
  r.eager.clear();
  return r;
}

} // namespace millrace::runtime
