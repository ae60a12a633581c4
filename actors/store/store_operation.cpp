// One store: reserves space, lets the fabric fill window after window, and publishes.
#include <millrace/actors/store/store_context.hpp>
#include <millrace/actors/window_pull.hpp>
#include <millrace/core/model_graph.hpp>

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
    auto self = shared_from_this();
    receipt_.model = request_.spec.name;
    store_->deps.bucket->reserve(
      request_.spec, std::move(request_.layers),
      context_->home<std::unique_ptr<reservation>>(
        [self](auto reserved) { self->on_reserved(std::move(reserved)); }));
  }

  void let_go() override {
    if (pull_)
      std::exchange(pull_, nullptr)->stop();
    reservation_.reset();
  }

private:
  status check() {
    auto& spec = request_.spec;
    if (auto bad = validate_model_name(spec.name); !bad.ok())
      return bad;
    if (auto bad = validate(spec.tensors); !bad.ok())
      return bad.within("model " + spec.name);
    if (auto bad = check_descriptions(request_.spec.graph, request_.layers); !bad.ok())
      return bad.within("model " + spec.name);
    work_->context = context_;
    work_->who = party_of(request_.from);
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
    reservation_->publish(
      std::move(work_->digests),
      context_->home<std::uint64_t>(
        [self = shared_from_this()](result<std::uint64_t> v) { self->on_published(v); }));
  }

  void on_published(const result<std::uint64_t>& version) {
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
