// One store: reserves space, lets the fabric fill window after window, and publishes.
#include <millrace/actors/store/store_context.hpp>
#include <millrace/actors/window_pull.hpp>
#include <millrace/core/model_graph.hpp>
#include <millrace/storage/model_check.hpp>

#include <cstring>

namespace millrace::actors {

namespace {

using storage::reservation;
using storage::window;

class store_operation : public timed_operation<store_request, store_receipt>,
                        public std::enable_shared_from_this<store_operation> {
public:
  store_operation(
    std::shared_ptr<store_context> context, store_request request, time_point arrived,
    answer<store_receipt> done)
    : timed_operation(context, std::move(request), arrived, std::move(done)),
      store_(std::move(context)) {}

protected:
  void start() override {
    if (auto bad = check(); !bad.ok())
      return give_up(bad);
    receipt_.model = request_.spec.name;
    if (!store_->placement.is_mixed())
      return reserve();
    using opened = std::shared_ptr<storage::opened_model>;
    store_->deps.bucket->open(
      request_.spec.name, 0,
      context_->home<opened>([self = shared_from_this()](const result<opened>& there) {
        if (self->answered())
          return;
        auto group = there ? self->store_->placement.group_of((*there)->record().spec) : "";
        if (!there || group == self->request_.spec.group)
          return self->reserve();
        self->give_up(
          {errc::already_exists,
           "provider {} has a model {} of group {}, where it was before; name that group to load "
           "it or remove it",
           self->context_->provider, self->receipt_.model, group});
      }));
  }

  void let_go() override {
    if (pull_)
      std::exchange(pull_, nullptr)->stop();
    reservation_.reset();
  }

private:
  void reserve() {
    store_->deps.bucket->reserve(
      request_.spec, std::move(request_.layers),
      context_->home<std::unique_ptr<reservation>>(
        [self = shared_from_this()](auto reserved) { self->on_reserved(std::move(reserved)); }));
  }

  status check() {
    auto& spec = request_.spec;
    if (auto bad = validate_model_name(spec.name); !bad.ok())
      return bad;
    if (storage::is_own_name(spec.name))
      return {errc::invalid_argument, "a model's name must not begin with the byte 1"};
    auto claim = store_->placement.may_store(spec.name, request_.by);
    if (!claim)
      return claim.error();
    request_.by = std::move(*claim);
    spec.group = request_.by.group;
    spec.view = request_.by.number;
    spec.erased = false;
    if (request_.version_after > version_after_max)
      return {
        errc::invalid_argument, "model {}: no provider counts its versions up to {}", spec.name,
        request_.version_after};
    spec.version_after = request_.version_after;
    if (auto bad = validate(spec.tensors); !bad.ok())
      return bad.within("model " + spec.name);
    if (auto bad = check_descriptions(request_.spec.graph, request_.layers); !bad.ok())
      return bad.within("model " + spec.name);
    work_->context = context_;
    work_->claim = {request_.from.holder, staging_use::save, deadline()};
    work_->channel = request_.from.connection;
    work_->offsets = layout_offsets{spec.tensors};
    work_->checksums = request_.checksums;
    receipt_.size_bytes = work_->offsets.size_bytes();
    eager_ = !request_.eager.empty() || receipt_.size_bytes == 0;
    auto offered = eager_ ? request_.eager.size() : size_bytes(request_.source);
    if (offered != receipt_.size_bytes)
      return {
        errc::invalid_argument, "model {}: its tensors have {} bytes, the memory offered has {}",
        spec.name, receipt_.size_bytes, offered};
    if (request_.eager.size() > context_->bounds.eager_bytes_max)
      return {errc::invalid_argument, "model {}: too many bytes inside a message", spec.name};
    work_->source = request_.source;
    return {};
  }

  void on_reserved(result<std::unique_ptr<reservation>> reserved) {
    if (answered())
      return;
    if (!reserved)
      return give_up(reserved.error());
    reserved_at_ = moved_at_ = steady_clock::now();
    receipt_.times.reserve_us = us_between(begun_, reserved_at_);
    reservation_ = std::move(*reserved);
    auto self = shared_from_this();
    window_pull::events events;
    events.arrived = [self] { self->moved_at_ = steady_clock::now(); };
    events.done = [self](result<filled_window> filled) { self->on_filled(std::move(filled)); };
    pull_ = std::make_shared<window_pull>(
      work_, *reservation_, eager_ ? fill_eagerly() : fill_directly(work_), std::move(events));
    pull_->start();
  }

  // Fills windows from the bytes that came inside the message.
  window_filler fill_eagerly() {
    return [self = shared_from_this()](const window& w, auto arrived, auto done) {
      for (auto& piece : w.pieces) {
        auto* source = self->request_.eager.data() + self->work_->offsets.byte_of(piece);
        std::memcpy(piece.data, source, piece.length);
        std::size_t at = 0;
        if (self->work_->checksums)
          self->work_->keep_digests(piece, {digest(piece.data, piece.length)}, at);
        arrived(piece.length);
      }
      done(filled_window{"eager", false});
    };
  }

  void on_filled(result<filled_window> filled) {
    if (answered())
      return;
    if (!filled)
      return give_up(filled.error().within("storing " + receipt_.model));
    receipt_.driver = std::move(filled->driver);
    receipt_.checksums = request_.checksums;
    if (auto moved = store_->placement.still_holds(receipt_.model, request_.by); !moved.ok())
      return give_up(moved);
    // The client may have stored something else since. This process may have stood still.
    if (store_->now() > deadline())
      return give_up(late(context_->provider, "store"));
    store_->placement.begin_change();
    reservation_->publish(
      std::move(work_->digests),
      context_->home<std::uint64_t>(
        [self = shared_from_this()](result<std::uint64_t> v) { self->on_published(v); }));
  }

  void on_published(const result<std::uint64_t>& version) {
    store_->placement.end_change();
    if (version && store_->published)
      store_->published(receipt_.model, *version);
    if (answered())
      return;
    if (!version)
      return give_up(version.error());
    receipt_.version = *version;
    receipt_.provider = context_->provider;
    receipt_.durable = store_->deps.bucket->capabilities().durable;
    receipt_.times.move_us = us_between(reserved_at_, moved_at_);
    receipt_.times.finish_us = us_between(moved_at_, steady_clock::now());
    succeed();
  }

  std::shared_ptr<store_context> store_;
  time_point reserved_at_, moved_at_;
  std::shared_ptr<pull_work> work_ = std::make_shared<pull_work>();
  std::unique_ptr<reservation> reservation_;
  std::shared_ptr<window_pull> pull_;
  bool eager_ = false;
};

} // namespace

std::shared_ptr<operation> make_store_operation(
  std::shared_ptr<store_context> context, store_request request, time_point arrived,
  answer<store_receipt> done) {
  return std::make_shared<store_operation>(
    std::move(context), std::move(request), arrived, std::move(done));
}

} // namespace millrace::actors
