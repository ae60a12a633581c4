// Exposes and withdraws targets, and scatters bytes that came inside a reply.
#include <millrace/runtime/client/calls/load_call.hpp>

namespace millrace::runtime {

std::shared_ptr<load_call> load_call::make(std::shared_ptr<client_core> core) {
  std::shared_ptr<load_call> call{new load_call{std::move(core)}};
  // The caller does not have the future yet, so it cannot have cancelled.
  static_cast<void>(call->done_.on_cancel([weak = std::weak_ptr{call}] {
    if (auto c = weak.lock())
      c->give_up();
  }));
  return call;
}

result<bulk_handle> load_call::open(
  const std::string& model, std::optional<std::uint64_t> version,
  std::vector<tensor_view> targets) {
  auto list = transport::gather_list::of(targets, access_mode::write);
  if (!list)
    return fail(list.error());
  targets_ = std::move(targets);
  asked_ = {model, version, list->size_bytes()};
  eager_ = list->on_host() && list->size_bytes() <= core_->where().eager_bytes_max;
  if (eager_)
    return bulk_handle{};
  std::lock_guard guard{mutex_};
  if (given_up_)
    return fail(errc::cancelled, "cancelled by the caller");
  region_ = transport::expose(std::move(*list), access_mode::write);
  return region_.handle();
}

void load_call::give_up() {
  {
    std::lock_guard guard{mutex_};
    given_up_ = true;
  }
  region_.withdraw();
}

void load_call::finish(result<actors::load_reply> outcome) {
  // After this call no peer writes to the caller's memory.
  region_.withdraw();
  outcome = check(std::move(outcome));
  if (std::lock_guard guard{mutex_}; outcome && eager_ && !given_up_)
    if (auto bad = scatter(outcome->eager); !bad.ok())
      outcome = fail(std::move(bad));
  if (!outcome)
    return static_cast<void>(done_.set(fail(std::move(outcome.error()))));
  // The rest of the reply is for this class alone.
  done_.set(load_receipt{std::move(*outcome)});
}

status load_call::scatter(const small_bytes& eager) const {
  auto list = transport::gather_list::of(targets_, access_mode::write);
  if (!list)
    return list.error();
  if (list->size_bytes() != eager.size())
    return {errc::protocol_error, "the provider sent another number of bytes than asked for"};
  list->write(
    0, reinterpret_cast<const std::byte*>(eager.data()), eager.size(),
    transport::store_mode::cached);
  return {};
}

} // namespace millrace::runtime
