// Runs a call under a ticket, on a thread that may wait. Used by a pool's checkpoint store and
// bucket.
#pragma once

#include <millrace/storage/pmem/pool_state.hpp>

#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

namespace millrace::storage::pmem {

/// Turns an exception (memory that runs out) into an error of the call, so that it does not end the
/// thread.
template <class T, class Work>
result<T> attempt(const std::shared_ptr<pool_state>& state, Work& work, gate::ticket& ticket) {
  try {
    return work(state, ticket);
  } catch (const std::exception& e) {
    return fail(errc::internal, "pool {}: {}", state->file.path, e.what());
  }
}

/// The thread on which the work of a call runs.
enum class call_place : std::uint8_t {
  /// The caller's thread where cache lines are written back, since a publish takes microseconds;
  /// else a thread of the pool, since a publish waits for the disk.
  by_medium,
  pool, // a thread of the pool, for work that reads or writes many bytes
};

/// Runs `work(state, ticket)`, and `done` with its outcome after the ticket is returned.
template <class T, class Work>
void run_call(
  const std::shared_ptr<pool_state>& state, gate& entrance, completion<T> done, Work work,
  call_place place = call_place::by_medium) {
  auto ticket = entrance.enter();
  if (!ticket)
    return done(fail(closed_status(*state)));
  auto job = [state, ticket = std::move(ticket), done = std::move(done),
              work = std::move(work)](const status& stopped) mutable {
    auto outcome = stopped.ok() ? attempt<T>(state, work, ticket) : result<T>{fail(stopped)};
    ticket.reset();
    done(std::move(outcome));
  };
  if (place == call_place::by_medium && state->persist.how() == write_back::cache_lines)
    job({});
  else
    state->pool.post(std::move(job));
}

} // namespace millrace::storage::pmem
