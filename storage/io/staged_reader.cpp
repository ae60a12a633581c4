// Planning, reading and lending of windows. Called by opened models.
#include <millrace/storage/io/file_io.hpp>
#include <millrace/storage/io/staged_reader.hpp>
#include <millrace/storage/model_check.hpp>

#include <algorithm>
#include <utility>

namespace millrace::storage::io {

void staged_reader::fetch(
  std::vector<wanted> ranges, std::weak_ptr<void> asker, completion<window> done) {
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
  auto size = std::max(plan.memory_bytes, direct_io_bytes);
  auto lent = [self = shared_from_this(), ticket = std::move(*ticket), plan = std::move(plan),
               done = std::move(done)](result<memory_block> memory) mutable {
    if (!memory)
      return done(fail(self->within(memory.error())));
    std::exchange(self, nullptr)
      ->read(plan, std::move(*memory), std::move(ticket), std::move(done));
  };
  staging().acquire(size, std::move(asker), std::move(lent));
}

void staged_reader::read(
  const read_plan& plan, memory_block memory, gate::ticket ticket, completion<window> done) {
  window filled{0, {}, memory.owner};
  filled.pieces.reserve(plan.pieces.size());
  for (auto& p : plan.pieces)
    filled.pieces.push_back({p.tensor, p.tensor_offset, memory.data + p.at, p.length});
  auto work = read_jobs(plan.runs, memory.data);
  memory.owner.reset();
  pool().post_all(
    std::move(work),
    [self = shared_from_this(), ticket = std::move(ticket), filled = std::move(filled),
     done = std::move(done)](status outcome) mutable {
      if (!outcome.ok())
        outcome = self->within(outcome);
      // The version is released before the caller goes on: an eviction may wait for it.
      self.reset();
      ticket.reset();
      outcome.ok() ? done(std::move(filled)) : done(fail(std::move(outcome)));
    });
}

} // namespace millrace::storage::io
