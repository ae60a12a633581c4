// Lending, writing and counting the windows of one stream. Called by reservations.
#include <millrace/storage/io/staged_writer.hpp>

#include <algorithm>

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

std::uint64_t staged_writer::window_bytes() const noexcept {
  std::uint64_t largest = 0;
  for (auto& w : packed().windows)
    largest = std::max(largest, w.size_bytes);
  return largest;
}

void staged_writer::acquire(std::uint32_t index, memory_block staging, completion<window> done) {
  if (index < window_count())
    if (auto bad = check_staging(staging, packed().windows[index].size_bytes); !bad.ok())
      return done(fail(bad.within(doing())));
  if (!advance(index, phase::idle, phase::lent))
    return done(misused(index, "cannot be acquired now"));
  auto lent = lend(packed(), index, staging);
  windows_[index].memory = std::move(staging);
  done(std::move(lent));
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
