// Through the gate, and to the thread on which a call may wait. Used by the checkpoint store and the bucket.
#pragma once

#include <millrace/storage/pmem/pool_state.hpp>

#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

namespace millrace::storage::pmem {

/// Memory that runs out ends the call, not the thread, nor the actor that made it.
template <class T, class Work>
result<T> attempt(const std::shared_ptr<pool_state>& state, Work& work, gate::ticket& ticket) {
  try {
    return work(state, ticket);
  } catch (const std::exception& e) {
    return fail(errc::internal, "pool {}: {}", state->file.path, e.what());
  }
}

/// Where the work of a call is done.
enum class call_place : std::uint8_t {
  /// A publish takes microseconds where cache lines are written back, and a wait for the disk elsewhere: then a thread
  /// of the pool does it, else the caller.
  by_medium,
  pool, // what reads or writes many bytes
};

/// Runs `work(core, ticket)`, and `done` with its outcome once the ticket is given back.
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
