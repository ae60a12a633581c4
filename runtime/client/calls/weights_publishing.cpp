// A publication is a store of a snapshot with a number in its metadata.
#include <millrace/core/ids.hpp>
#include <millrace/runtime/client/calls/store_call.hpp>
#include <millrace/runtime/client/calls/weights_publishing.hpp>
#include <millrace/runtime/client/calls/weights_record.hpp>

#include <array>
#include <utility>

namespace millrace::runtime {

namespace {

std::string new_run() {
  std::array<std::uint8_t, 8> id{};
  random_bytes(id.data(), id.size());
  return to_hex(id.data(), id.size());
}

layout layout_of(const std::vector<tensor_view>& tensors) {
  layout out;
  for (auto& tensor : tensors)
    out.tensors.push_back(tensor.desc);
  return out;
}

status check_views(const std::vector<tensor_view>& tensors) {
  for (auto& tensor : tensors)
    if (auto bad = validate(tensor); !bad.ok())
      return bad;
  return validate(layout_of(tensors));
}

} // namespace

result<std::shared_ptr<weights_publishing>> weights_publishing::make(
  std::shared_ptr<client_core> core, std::string group, std::string name,
  std::vector<tensor_view> tensors, publisher_options options) {
  auto bad = check_weights_metadata(options.metadata);
  if (bad.ok())
    bad = check_views(tensors);
  if (!bad.ok())
    return fail(bad.within("publishing " + name));
  auto chain = core->chain_for(name, layout_of(tensors));
  std::shared_ptr<weights_publishing> out{new weights_publishing{
    std::move(core), std::move(group), std::move(name), std::move(tensors), std::move(options)}};
  out->graph_ = std::move(chain);
  return out;
}

weights_publishing::weights_publishing(
  std::shared_ptr<client_core> core, std::string group, std::string name,
  std::vector<tensor_view> tensors, publisher_options options)
  : core_(std::move(core)), group_(std::move(group)), name_(std::move(name)), run_(new_run()),
    options_(std::move(options)), tensors_(std::move(tensors)) {}

// Of what failed nobody knows whether followers have got it, so its number may be used again.
status weights_publishing::refusal(std::uint64_t version) const {
  if (waiting_)
    return {
      errc::busy, "publishing {} of {}: version {} waits already; wait for its `staged`", version,
      name_, waiting_->version};
  auto last = running_ ? std::optional{running_->version} : last_stored_;
  if (last && version <= *last)
    return {
      errc::invalid_argument, "publishing {} of {}: version {} was published before; numbers rise",
      version, name_, *last};
  return {};
}

pending_store weights_publishing::publish(std::uint64_t version) {
  if (auto refused = core_->refusal(); !refused.ok())
    return failed_store(refused);
  auto one = std::make_shared<publication>();
  one->version = version;
  one->staged = core_->make_promise<void>();
  one->stored = core_->make_promise<receipt>();
  {
    std::lock_guard guard{mutex_};
    if (auto refused = refusal(version); !refused.ok())
      return failed_store(refused);
    waiting_ = one;
  }
  // The caller does not have the futures yet, so it cannot have cancelled.
  auto undo = [weak = weak_from_this(), one = std::weak_ptr{one}] {
    if (auto self = weak.lock())
      if (auto kept = one.lock())
        self->give_up(kept);
  };
  static_cast<void>(one->stored.on_cancel(undo));
  static_cast<void>(one->staged.on_cancel(undo));
  pending_store out{one->staged.get_future(), one->stored.get_future()};
  begin_next();
  return out;
}

status weights_publishing::rebind(std::vector<tensor_view> tensors) {
  if (auto refused = core_->refusal(); !refused.ok())
    return refused;
  auto bad = check_views(tensors);
  std::lock_guard guard{mutex_};
  if (bad.ok() && layout_of(tensors) != layout_of(tensors_))
    bad = {errc::invalid_argument, "the tensors differ from those registered in more than place"};
  if (!bad.ok())
    return bad.within("publishing " + name_);
  if (waiting_ || (running_ && !running_->staged.get_future().ready()))
    return {errc::busy, "publishing {}: its tensors are being read; wait for `staged`", name_};
  tensors_ = std::move(tensors);
  return {};
}

// The store begins without the lock: in a node of this process it may run other code of the
// program on this thread.
void weights_publishing::begin_next() {
  publication_ptr one;
  std::vector<tensor_view> tensors;
  {
    std::lock_guard guard{mutex_};
    if (running_ || !waiting_)
      return;
    one = running_ = std::exchange(waiting_, nullptr);
    one->begins_on = std::this_thread::get_id();
    tensors = tensors_;
  }
  store_options how;
  how.checksums = options_.checksums;
  how.timeout = options_.timeout;
  how.metadata = weights_metadata(options_.metadata, run_, one->version);
  auto store =
    begin_store(core_, group_, name_, *graph_, std::move(tensors), how, store_from::snapshot);
  bool given_up = false;
  {
    std::lock_guard guard{mutex_};
    one->store = store;
    given_up = one->given_up;
  }
  begun_.notify_all();
  if (given_up)
    store.stored.cancel();
  store.staged.chain([one](const result<void>& outcome) { one->staged.set(outcome); });
  store.stored.chain([self = shared_from_this(), one](const result<receipt>& outcome) {
    self->on_stored(one, outcome);
  });
}

void weights_publishing::on_stored(const publication_ptr& one, const result<receipt>& outcome) {
  {
    std::lock_guard guard{mutex_};
    running_ = nullptr;
    if (outcome)
      last_stored_ = one->version;
  }
  one->staged.set(outcome ? result<void>{} : fail(outcome.error()));
  one->stored.set(outcome);
  begin_next();
}

// One that waits does not begin. One that begins on another thread is cancelled when it has begun.
// The store ends when nothing reads the tensors any more, and the next one begins then.
void weights_publishing::give_up(const publication_ptr& one) {
  future<receipt> begun;
  {
    std::unique_lock guard{mutex_};
    one->given_up = true;
    if (waiting_ == one)
      waiting_ = nullptr;
    else if (running_ == one && one->begins_on != std::this_thread::get_id())
      begun_.wait(guard, [&] { return one->store.stored.valid(); });
    begun = one->store.stored;
  }
  if (begun.valid())
    begun.cancel();
  auto why = fail(errc::cancelled, "cancelled by the caller");
  one->staged.set(why);
  one->stored.set(why);
}

} // namespace millrace::runtime
