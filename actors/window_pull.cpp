// Keeps windows in flight up to the bound. The filler that the owner chose fills each of them.
#include <millrace/actors/window_pull.hpp>

namespace millrace::actors {

using storage::window;

void pull_work::keep_digests(
  const storage::piece& piece, const std::vector<std::uint64_t>& found, std::size_t& at) {
  if (!checksums)
    return;
  auto first = offsets.digest_of(piece);
  for (std::uint64_t i = 0; i < digest_count(piece.length); ++i)
    digests[first + i] = found[at++];
}

window_filler fill_directly(std::shared_ptr<pull_work> work) {
  return [work](window w, auto arrived, auto done) {
    transport::transfer t;
    t.dir = transport::direction::read;
    t.remote = work->source;
    t.channel = work->channel;
    t.digests = work->checksums;
    t.write_back = work->write_back;
    t.hold = w.hold;
    t.ops.reserve(w.pieces.size());
    std::uint64_t bytes = 0;
    for (auto& piece : w.pieces) {
      t.ops.push_back(
        {.remote_offset = work->offsets.byte_of(piece),
         .local = piece.data,
         .length = piece.length});
      bytes += piece.length;
    }
    work->context->move(
      std::move(t), [work, bytes, arrived, done, pieces = std::move(w.pieces)](auto report) {
        if (!report)
          return done(fail(report.error()));
        std::size_t at = 0;
        for (auto& piece : pieces)
          work->keep_digests(piece, report->digests, at);
        arrived(bytes);
        done(filled_window{std::string{report->driver}, report->written_back});
      });
  };
}

window_pull::window_pull(
  std::shared_ptr<pull_work> work, storage::window_space& room, window_filler fill, events events)
  : work_(std::move(work)), room_(&room), fill_(std::move(fill)), events_(std::move(events)),
    windows_(room.window_count()) {
  outcome_.written_back = true;
  work_->claim.need = &work_->need;
}

void window_pull::start() {
  // Not done earlier: the reservation has now shown that this size fits.
  if (work_->checksums)
    work_->digests.resize(work_->offsets.digests());
  auto self = shared_from_this();
  if (work_->offsets.size_bytes() == 0)
    on_arrived(0);
  pump();
}

void window_pull::stop() {
  work_->stopped = true;
  room_ = nullptr;
  fill_ = nullptr;
  events_ = {};
  work_->need.end();
}

void window_pull::pump() {
  auto self = shared_from_this();
  while (room_ && next_ < windows_ && in_flight_ < work_->context->bounds.windows_max) {
    ++in_flight_;
    work_->context->ask_for_window(
      work_->claim, room_->window_bytes(), [self, index = next_++](result<memory_block> staging) {
        self->on_staging(index, std::move(staging));
      });
  }
  if (room_ && in_flight_ == 0 && next_ == windows_)
    end(std::move(outcome_));
}

void window_pull::on_staging(std::uint32_t index, result<memory_block> staging) {
  if (!room_)
    return;
  if (!staging)
    return end(fail(staging.error()));
  room_->acquire(
    index, std::move(*staging),
    work_->context->home<window>(
      [self = shared_from_this()](result<window> w) { self->on_window(std::move(w)); }));
}

void window_pull::on_window(result<window> w) {
  if (!room_)
    return;
  if (!w)
    return end(fail(w.error()));
  auto self = shared_from_this();
  auto index = w->index;
  auto fill = fill_; // the pull may end before `fill` returns, and that drops `fill_`
  fill(
    std::move(*w), [self](std::uint64_t bytes) { self->on_arrived(bytes); },
    [self, index](result<filled_window> filled) { self->on_filled(index, std::move(filled)); });
}

void window_pull::on_arrived(std::uint64_t bytes) {
  arrived_bytes_ += bytes;
  if (arrived_bytes_ >= work_->offsets.size_bytes())
    if (auto arrived = std::exchange(events_.arrived, nullptr))
      arrived();
}

void window_pull::on_filled(std::uint32_t index, result<filled_window> filled) {
  if (!room_)
    return;
  if (!filled)
    return end(fail(filled.error()));
  outcome_.driver = std::move(filled->driver);
  outcome_.written_back &= filled->written_back;
  room_->commit(index, work_->context->home<void>([self = shared_from_this()](result<void> r) {
    self->on_committed(r);
  }));
}

void window_pull::on_committed(const result<void>& committed) {
  if (!room_)
    return;
  if (!committed)
    return end(fail(committed.error()));
  --in_flight_;
  pump();
}

void window_pull::end(result<filled_window> outcome) {
  auto done = std::move(events_.done);
  stop();
  if (done)
    done(std::move(outcome));
}

} // namespace millrace::actors
