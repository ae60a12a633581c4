// Lending, writing and counting the windows of one stream. Called by reservations.
#include <millrace/storage/io/staged_writer.hpp>

namespace millrace::storage::io {

tl::unexpected<status> staged_writer::misused(std::uint32_t index, const char* how) const {
  return fail(errc::invalid_argument, "{}: window {} {}", doing(), index, how);
}

bool staged_writer::advance(std::uint32_t index, phase from, phase to) {
  std::lock_guard guard{mutex_};
  if (finished_ || index >= window_count())
    return false;
  windows_.resize(window_count());
  if (windows_[index].at != from)
    return false;
  windows_[index].at = to;
  return true;
}

void staged_writer::acquire(
  std::uint32_t index, std::weak_ptr<void> asker, completion<window> done) {
  if (!advance(index, phase::idle, phase::asked))
    return done(misused(index, "cannot be acquired now"));
  auto lent = [self = shared_from_this(), index,
               done = std::move(done)](result<memory_block> memory) {
    if (!memory) {
      self->advance(index, phase::asked, phase::idle);
      return done(fail(memory.error().within(self->doing())));
    }
    done(self->lend(index, std::move(*memory)));
  };
  staging().acquire(packed().windows[index].size_bytes, std::move(asker), std::move(lent));
}

window staged_writer::lend(std::uint32_t index, memory_block memory) {
  auto lent = io::lend(packed(), index, memory);
  std::lock_guard guard{mutex_};
  windows_[index].memory = std::move(memory);
  windows_[index].at = phase::lent;
  return lent;
}

void staged_writer::commit(std::uint32_t index, completion<void> done) {
  if (!advance(index, phase::lent, phase::committing))
    return done(misused(index, "is not acquired"));
  auto data = windows_[index].memory.data;
  clear_gaps(packed(), index, data);
  pool().post_all(
    write_jobs(index, data),
    [self = shared_from_this(), index, done = std::move(done)](status outcome) mutable {
      self->written(index, outcome);
      if (!outcome.ok())
        outcome = outcome.within(self->doing());
      self.reset();
      outcome.ok() ? done({}) : done(fail(std::move(outcome)));
    });
}

void staged_writer::written(std::uint32_t index, const status& outcome) {
  memory_block returned; // destroyed after the lock is released
  std::lock_guard guard{mutex_};
  returned = std::move(windows_[index].memory);
  windows_[index].at = phase::committed;
  if (failed_.ok() && !outcome.ok())
    failed_ = outcome;
}

status staged_writer::finish() {
  std::lock_guard guard{mutex_};
  if (finished_)
    return {errc::invalid_argument, "published already"};
  windows_.resize(window_count());
  for (auto& one : windows_)
    if (one.at != phase::committed)
      return {errc::invalid_argument, "a window is not committed"};
  finished_ = failed_.ok();
  return failed_;
}

} // namespace millrace::storage::io
