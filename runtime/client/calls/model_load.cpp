// Chooses a provider and tensors, and keeps memory exposed exactly as long as a load runs.
#include <millrace/runtime/client/calls/describe_call.hpp>
#include <millrace/runtime/client/calls/load_call.hpp>
#include <millrace/runtime/client/calls/model_load.hpp>
#include <millrace/runtime/client/calls/model_search.hpp>
#include <millrace/runtime/client/calls/selected.hpp>

#include <mutex>
#include <optional>
#include <utility>

namespace millrace::runtime {

namespace {

// Where a load asks first.
struct load_from {
  std::size_t provider = 0;
  actors::placement_claim by;
};

void begin(
  const std::shared_ptr<load_call>& call, const std::shared_ptr<client_core>& core,
  const load_from& from, const std::string& model, std::vector<load_target> targets,
  std::uint64_t version, time_point deadline, load_batch* batch = nullptr) {
  if (auto bad = check_targets(targets); !bad.ok())
    return call->finish(fail(std::move(bad)));
  auto views = take_views(targets);
  auto asked = version != 0 ? std::optional{version} : std::nullopt;
  auto memory = call->open(model, asked, std::move(views));
  if (!memory)
    return call->finish(fail(memory.error()));
  auto ask = [core, call, model, memory = *memory, targets = std::move(targets), version, deadline,
              batch](
               std::size_t provider, actors::placement_claim by,
               completion<actors::load_reply> done) mutable {
    actors::load_request request;
    request.model = model;
    request.version = version;
    request.target = memory;
    request.by = std::move(by);
    for (std::size_t i = 0; i < targets.size(); ++i)
      request.selections.push_back(selected(call->targets()[i].desc, targets[i]));
    // The batch gets the first request only, while it exists.
    if (auto* together = std::exchange(batch, nullptr); together && !memory.length_bytes)
      return together->add(
        deadline, provider, std::move(request), call->size_bytes(), std::move(done));
    core->ask_until<actors::store_service>(deadline, provider, std::move(request), std::move(done));
  };
  std::make_shared<keeper_call<actors::load_reply>>(
    core, from.by.group, model, deadline, std::move(ask),
    [call](result<actors::load_reply> r) { call->finish(std::move(r)); })
    ->begin_at(from.provider, from.by);
}

// Returns the targets of a load into one buffer.
result<std::vector<load_target>> pack(
  const std::vector<tensor_desc>& chosen, std::span<std::byte> buffer) {
  std::uint64_t needed = 0;
  for (auto& tensor : chosen) {
    auto bytes = size_bytes(tensor);
    if (!bytes)
      return fail(bytes.error());
    // The same tensor may be requested more than once.
    if (__builtin_add_overflow(needed, *bytes, &needed))
      return fail(errc::invalid_argument, "the size of the tensors overflows 64 bits");
  }
  if (needed > buffer.size())
    return fail(errc::no_space, "the tensors have {} bytes, the buffer {}", needed, buffer.size());
  std::vector<load_target> targets;
  std::uint64_t at = 0;
  for (auto& tensor : chosen) {
    targets.push_back({{tensor, buffer.data() + at, {}}, {}});
    at += *size_bytes(tensor);
  }
  return targets;
}

// One load of tensors that the client chooses. It ends in one load, or in two: by what the client
// knows, and by what the provider says.
class chosen_load : public std::enable_shared_from_this<chosen_load> {
public:
  chosen_load(
    std::shared_ptr<client_core> core, std::string group, std::string model,
    std::span<std::byte> buffer, const load_options& options, tensor_choice choose)
    : core_(std::move(core)), group_(std::move(group)), model_(std::move(model)), buffer_(buffer),
      version_(options.version), deadline_(core_->deadline_after(options.timeout)),
      choose_(std::move(choose)), done_(core_->make_promise<loaded_tensors>()) {}

  future<loaded_tensors> begin() {
    // Registered before the load begins: when the caller cancels, the buffer is its own again,
    // whatever the load is doing.
    static_cast<void>(done_.on_cancel([weak = weak_from_this()] {
      if (auto self = weak.lock())
        self->give_up();
    }));
    auto out = done_.get_future();
    if (!begin_as_known())
      describe();
    return out;
  }

private:
  // Begins a load by what the client knows. Returns false if that is nothing, or does not serve.
  bool begin_as_known() {
    auto known = core_->models().find(group_, model_);
    if (!known || (version_ != 0 && version_ != known->version()))
      return false;
    auto provider = core_->place_now(model_, group_);
    auto targets = choose_from(*known);
    if (!provider || !targets)
      return false;
    load(
      {*provider, {group_, 0}}, std::move(*targets), version_,
      [known](chosen_load& self, const result<load_receipt>& outcome) {
        self.loaded_as_known(*known, outcome);
      });
    return true;
  }

  void loaded_as_known(const known_model& known, const result<load_receipt>& outcome) {
    if (!outcome) {
      auto code = outcome.error().code();
      // The newest version may have other tensors, or none: its description tells what is wrong.
      if (code == errc::not_found || code == errc::invalid_argument)
        return describe();
      return static_cast<void>(done_.set(fail(outcome.error())));
    }
    // A service of an older build does not say when the version was stored.
    if (
      outcome->version == known.version() && outcome->stored_at_ns == known.stored_at_ns() &&
      outcome->stored_at_ns != 0 && outcome->provider == known.provider())
      return succeed(*outcome);
    receipt_ = *outcome;
    describe();
  }

  void describe() {
    ask_record(
      core_, group_, model_, version_, deadline_,
      [self = shared_from_this()](const result<found_record>& r) {
        r ? self->described(*r) : static_cast<void>(self->done_.set(fail(r.error())));
      });
  }

  void described(const found_record& r) {
    auto& known = *r.known;
    auto before = std::move(chosen_);
    auto targets = choose_from(known);
    if (!targets)
      return static_cast<void>(done_.set(fail(targets.error())));
    if (
      receipt_ && receipt_->version == known.version() &&
      receipt_->stored_at_ns == known.stored_at_ns() && receipt_->provider == known.provider() &&
      before == chosen_)
      return succeed(*receipt_);
    load(
      {r.provider, r.by}, std::move(*targets), known.version(),
      [](chosen_load& self, const result<load_receipt>& outcome) {
        outcome ? self.succeed(*outcome) : static_cast<void>(self.done_.set(fail(outcome.error())));
      });
  }

  result<std::vector<load_target>> choose_from(const known_model& known) {
    auto chosen = choose_(known);
    if (!chosen)
      return fail(chosen.error());
    chosen_ = std::move(*chosen);
    return pack(chosen_, buffer_);
  }

  template <class Then>
  void load(
    const load_from& from, std::vector<load_target> targets, std::uint64_t version, Then then) {
    auto call = load_call::make(core_);
    {
      std::lock_guard guard{mutex_};
      if (given_up_)
        return;
      loading_ = call;
    }
    call->outcome().chain(
      [self = shared_from_this(), then](const result<load_receipt>& r) { then(*self, r); });
    runtime::begin(call, core_, from, model_, std::move(targets), version, deadline_);
  }

  void give_up() {
    std::shared_ptr<load_call> loading;
    {
      std::lock_guard guard{mutex_};
      given_up_ = true;
      loading = loading_;
    }
    if (loading)
      loading->outcome().cancel();
  }

  void succeed(const load_receipt& receipt) {
    loaded_tensors loaded;
    loaded.receipt = receipt;
    auto* at = buffer_.data();
    for (auto& tensor : chosen_) {
      loaded.tensors.push_back({tensor, at, {}});
      at += *size_bytes(tensor);
    }
    done_.set(std::move(loaded));
  }

  const std::shared_ptr<client_core> core_;
  const std::string group_, model_;
  const std::span<std::byte> buffer_;
  const std::uint64_t version_; // 0: the newest
  const time_point deadline_;
  const tensor_choice choose_;
  promise<loaded_tensors> done_;
  std::vector<tensor_desc> chosen_;     // last
  std::optional<load_receipt> receipt_; // of a load by what the client knew, of another version

  std::mutex mutex_;
  bool given_up_ = false;
  std::shared_ptr<load_call> loading_;
};

} // namespace

future<load_receipt> begin_load(
  const std::shared_ptr<client_core>& core, const std::string& group, const std::string& model,
  std::vector<load_target> targets, std::uint64_t version, time_point deadline, load_batch* batch) {
  auto provider = core->place_now(model, group);
  if (!provider)
    return ready_future<load_receipt>(fail(provider.error()));
  auto call = load_call::make(core);
  begin(call, core, {*provider, {group, 0}}, model, std::move(targets), version, deadline, batch);
  return call->outcome();
}

future<loaded_tensors> begin_load_of(
  std::shared_ptr<client_core> core, std::string group, std::string model,
  std::span<std::byte> buffer, const load_options& options, tensor_choice choose) {
  return std::make_shared<chosen_load>(
           std::move(core), std::move(group), std::move(model), buffer, options, std::move(choose))
    ->begin();
}

} // namespace millrace::runtime
