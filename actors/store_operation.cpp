// One store: reserve, let the fabric fill window after window, publish.
#include <millrace/actors/store_context.hpp>
#include <millrace/core/digest.hpp>

#include <cstring>
#include <optional>

namespace millrace::actors {

namespace {

using storage::reservation;
using storage::window;

class store_operation : public timed_operation<store_request, store_receipt>,
                        public std::enable_shared_from_this<store_operation> {
public:
  using timed_operation::timed_operation;

protected:
  void start() override {
    if (auto bad = check(); !bad.ok())
      return give_up(bad);
    auto self = shared_from_this();
    receipt_.model = request_.spec.name;
    context_->deps.bucket->reserve(
      request_.spec, std::move(request_.layers),
      context_->home<std::unique_ptr<reservation>>(
        [self](auto reserved) { self->on_reserved(std::move(reserved)); }));
  }

  void let_go() override { reservation_.reset(); }

private:
  status check() {
    auto& spec = request_.spec;
    if (auto bad = validate_model_name(spec.name); !bad.ok())
      return bad;
    if (auto bad = validate(spec.tensors); !bad.ok())
      return bad.within("model " + spec.name);
    std::uint64_t digests = 0;
    for (auto& tensor : spec.tensors.tensors) {
      starts_.push_back(receipt_.size_bytes);
      digest_starts_.push_back(digests);
      auto bytes = *size_bytes(tensor);
      receipt_.size_bytes += bytes;
      digests += digest_count(bytes);
    }
    digests_count_ = digests;
    eager_ = !request_.eager.empty() || receipt_.size_bytes == 0;
    auto offered = eager_ ? request_.eager.size() : size_bytes(request_.source);
    if (offered != receipt_.size_bytes)
      return {
        errc::invalid_argument,
        "model " + spec.name + ": its tensors have " + std::to_string(receipt_.size_bytes) +
          " bytes, the memory offered has " + std::to_string(offered)};
    if (request_.eager.size() > context_->deps.limits.eager_bytes_max)
      return {errc::invalid_argument, "model " + spec.name + ": too many bytes inside a message"};
    return {};
  }

  void on_reserved(result<std::unique_ptr<reservation>> reserved) {
    if (answered())
      return;
    if (!reserved)
      return give_up(reserved.error());
    reserved_at_ = steady_clock::now();
    receipt_.times.reserve_us = us_between(begun_, reserved_at_);
    reservation_ = std::move(*reserved);
    windows_ = reservation_->window_count();
    // Not earlier: only now is the size known to be one that fits.
    if (request_.checksums)
      digests_.resize(digests_count_);
    pump();
  }

  // Starts windows up to the bound; publishes after the last.
  void pump() {
    auto self = shared_from_this();
    while (!answered() && next_ < windows_ && in_flight_ < context_->deps.limits.windows_max) {
      ++in_flight_;
      reservation_->acquire(next_++, context_->home<window>([self](result<window> w) {
        self->on_window(std::move(w));
      }));
    }
    if (!answered() && in_flight_ == 0 && next_ == windows_ && !publishing_)
      publish();
  }

  void on_window(result<window> w) {
    if (answered())
      return;
    if (!w)
      return give_up(w.error());
    if (eager_)
      return on_moved(w->index, w->pieces, copy_eager(w->pieces));
    transport::transfer t;
    t.dir = transport::direction::read;
    t.remote = request_.source;
    t.digests = request_.checksums;
    t.hold = w->hold;
    t.ops.reserve(w->pieces.size());
    for (auto& piece : w->pieces)
      t.ops.push_back(
        {starts_[piece.tensor] + piece.tensor_offset, piece.data, piece.length, 0, 0});
    context_->deps.fabric->submit(
      std::move(t),
      context_->home<transport::transfer_report>(
        [self = shared_from_this(), w = std::move(*w)](auto report) {
          self->on_moved(w.index, w.pieces, std::move(report));
        }));
  }

  // A few bytes that came inside the message.
  result<transport::transfer_report> copy_eager(const std::vector<storage::piece>& pieces) {
    transport::transfer_report report{{}, "eager"};
    for (auto& piece : pieces) {
      auto* source = request_.eager.data() + starts_[piece.tensor] + piece.tensor_offset;
      std::memcpy(piece.data, source, piece.length);
      if (request_.checksums)
        report.digests.push_back(digest(piece.data, piece.length));
    }
    return report;
  }

  void on_moved(
    std::uint32_t index, const std::vector<storage::piece>& pieces,
    result<transport::transfer_report> report) {
    if (answered())
      return;
    if (!report)
      return give_up(report.error().within("storing " + receipt_.model));
    receipt_.driver = report->driver;
    std::size_t at = 0;
    if (request_.checksums)
      for (auto& piece : pieces) {
        auto first = digest_starts_[piece.tensor] + piece.tensor_offset / digest_block_bytes;
        for (std::uint64_t i = 0; i < digest_count(piece.length); ++i)
          digests_[first + i] = report->digests[at++];
      }
    moved_at_ = steady_clock::now();
    reservation_->commit(index, context_->home<void>([self = shared_from_this()](result<void> r) {
      self->on_committed(r);
    }));
  }

  void on_committed(const result<void>& committed) {
    if (answered())
      return;
    if (!committed)
      return give_up(committed.error());
    --in_flight_;
    pump();
  }

  void publish() {
    publishing_ = true;
    receipt_.checksums = request_.checksums;
    reservation_->publish(
      std::move(digests_),
      context_->home<std::uint64_t>(
        [self = shared_from_this()](result<std::uint64_t> v) { self->on_published(v); }));
  }

  void on_published(const result<std::uint64_t>& version) {
    if (answered())
      return;
    if (!version)
      return give_up(version.error());
    receipt_.version = *version;
    receipt_.provider = context_->deps.name;
    receipt_.durable = context_->deps.bucket->capabilities().durable;
    if (windows_ > 0)
      receipt_.times.move_us = us_between(reserved_at_, moved_at_);
    receipt_.times.finish_us =
      us_between(windows_ > 0 ? moved_at_ : reserved_at_, steady_clock::now());
    succeed();
  }

  time_point reserved_at_, moved_at_;
  std::vector<std::uint64_t> starts_;        // per tensor: first byte in the source
  std::vector<std::uint64_t> digest_starts_; // per tensor: first digest
  std::uint64_t digests_count_ = 0;
  std::vector<std::uint64_t> digests_;
  std::unique_ptr<reservation> reservation_;
  std::uint32_t windows_ = 0;
  std::uint32_t next_ = 0;
  std::uint32_t in_flight_ = 0;
  bool eager_ = false;
  bool publishing_ = false;
};

} // namespace

std::shared_ptr<operation> make_store_operation(
  std::shared_ptr<store_context> context, store_request request, time_point arrived,
  answer<store_receipt> done) {
  return std::make_shared<store_operation>(
    std::move(context), std::move(request), arrived, std::move(done));
}

} // namespace millrace::actors
