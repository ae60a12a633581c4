// Makes the objects behind publishers, followers and readers, and ends them with their last copy.
#include <millrace/runtime/client/calls/model_erasing.hpp>
#include <millrace/runtime/client/calls/weights_buffers.hpp>
#include <millrace/runtime/client/calls/weights_following.hpp>
#include <millrace/runtime/client/calls/weights_publishing.hpp>
#include <millrace/runtime/client/weights.hpp>

#include <algorithm>
#include <utility>

namespace millrace {

using runtime::client_core;

pending_store weights_publisher::publish(std::uint64_t version) const {
  return of_->publish(version);
}

status weights_publisher::rebind(std::vector<tensor_view> tensors) const {
  return of_->rebind(std::move(tensors));
}

struct weights_follower::handle {
  std::shared_ptr<client_core> core; // the program's reference
  std::shared_ptr<runtime::weights_following> following;

  handle(std::shared_ptr<client_core> c, std::shared_ptr<runtime::weights_following> f)
    : core(std::move(c)), following(std::move(f)) {}
  handle(const handle&) = delete;
  ~handle() { following->stop(); }
};

weights_follower::weights_follower(std::shared_ptr<handle> of) : of_(std::move(of)) {}

future<weights_version> weights_follower::next(std::chrono::milliseconds timeout) const {
  return of_->following->next(timeout);
}

future<weights_version> weights_follower::load(
  std::vector<load_target> targets, std::chrono::milliseconds timeout) const {
  return of_->following->load(std::move(targets), timeout);
}

std::optional<weights_version> weights_follower::newest() const { return of_->following->newest(); }

const tensor_view* read_weights::find(const std::string& name) const noexcept {
  auto found = std::ranges::find(
    tensors, name, [](auto& tensor) -> auto& { return tensor.desc.name; });
  return found == tensors.end() ? nullptr : &*found;
}

struct weights_reader::handle {
  std::shared_ptr<client_core> core; // the program's reference
  std::shared_ptr<runtime::weights_buffers> buffers;

  handle(std::shared_ptr<client_core> c, std::shared_ptr<runtime::weights_buffers> b)
    : core(std::move(c)), buffers(std::move(b)) {}
  handle(const handle&) = delete;
  ~handle() { buffers->stop(); }
};

weights_reader::weights_reader(std::shared_ptr<handle> of) : of_(std::move(of)) {}

weights_ptr weights_reader::current() const { return of_->buffers->current(); }

future<weights_ptr> weights_reader::next(std::chrono::milliseconds timeout) const {
  return of_->buffers->next(timeout);
}

status weights::check() const {
  auto bad = core_->refusal();
  if (bad.ok())
    bad = validate_model_name(name_);
  if (bad.ok() && group_.empty())
    bad = {errc::invalid_argument, "weights {}: the group has no name", name_};
  return bad;
}

result<weights_publisher> weights::publisher(
  std::vector<tensor_view> tensors, publisher_options options) const {
  if (auto bad = check(); !bad.ok())
    return fail(bad);
  auto made =
    runtime::weights_publishing::make(core_, group_, name_, std::move(tensors), std::move(options));
  if (!made)
    return fail(made.error());
  return weights_publisher{std::move(*made)};
}

result<weights_follower> weights::follow() const {
  if (auto bad = check(); !bad.ok())
    return fail(bad);
  return weights_follower{std::make_shared<weights_follower::handle>(
    core_, runtime::weights_following::begin(core_, group_, name_))};
}

result<weights_reader> weights::read(
  std::vector<wanted_tensor> tensors, weights_reader_options options) const {
  if (auto bad = check(); !bad.ok())
    return fail(bad);
  auto made =
    runtime::weights_buffers::make(core_, group_, name_, std::move(tensors), std::move(options));
  if (!made)
    return fail(made.error());
  return weights_reader{std::make_shared<weights_reader::handle>(core_, std::move(*made))};
}

future<void> weights::erase() const { return repository{core_, group_}.erase(name_); }

} // namespace millrace
