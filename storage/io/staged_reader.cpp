// Planning and reading of windows. Called by opened models.
#include <millrace/storage/io/staged_reader.hpp>
#include <millrace/storage/model_check.hpp>

#include <algorithm>
#include <utility>

namespace millrace::storage::io {

namespace {

status run_here(const staged_reader::jobs& work) {
  for (auto& job : work)
    if (auto bad = job(); !bad.ok())
      return bad;
  return {};
}

} // namespace

void staged_reader::fetch(
  std::vector<wanted> ranges, memory_block staging, completion<window> done) {
  auto ticket = enter();
  if (!ticket)
    return done(fail(ticket.error()));
  if (auto bad = check_ranges(tensor_bytes(), ranges); !bad.ok())
    return done(fail(within(bad)));
  auto plan = plan_read(packed(), ranges);
  if (plan.memory_bytes > window_bytes())
    return done(fail(within(
      {errc::invalid_argument,
       "the ranges need {} bytes, a window has {}; fetch them as `plan` cuts them",
       plan.memory_bytes, window_bytes()})));
  if (auto bad = check_staging(staging, plan.memory_bytes); !bad.ok())
    return done(fail(within(bad)));
  window filled{0, {}, std::move(staging.owner)};
  filled.pieces.reserve(plan.pieces.size());
  for (auto& p : plan.pieces)
    filled.pieces.push_back({p.tensor, p.tensor_offset, staging.data + p.at, p.length});
  auto work = read_jobs(plan.runs, staging.data);
  auto end = [self = shared_from_this(), ticket = std::move(*ticket), filled = std::move(filled),
              done = std::move(done)](status outcome) mutable {
    if (!outcome.ok())
      outcome = self->within(outcome);
    // The version is released before the caller goes on: an eviction may wait for it.
    self.reset();
    ticket.reset();
    outcome.ok() ? done(std::move(filled)) : done(fail(std::move(outcome)));
  };
  if (!is_in_memory() || plan.memory_bytes > at_once_bytes_max)
    return pool().post_all(std::move(work), std::move(end));
  auto outcome = run_here(work);
  work.clear(); // the jobs keep the version, too
  end(std::move(outcome));
}

} // namespace millrace::storage::io
