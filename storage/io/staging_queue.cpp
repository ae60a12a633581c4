// Lends staging memory in the order of the requests.
#include <millrace/core/simulated_machine.hpp>
#include <millrace/storage/io/file_io.hpp>
#include <millrace/storage/io/io_pool.hpp>
#include <millrace/storage/io/staging_queue.hpp>

#include <algorithm>
#include <chrono>
#include <iterator>

namespace millrace::storage::io {

namespace {

// Others may use the same memory. They do not report it when they return theirs.
constexpr std::chrono::milliseconds look_again{2};

} // namespace

staging_queue::staging_queue(
  std::shared_ptr<memory_source> memory, std::uint32_t waiting_max, std::string owner)
  : waiting_max_(waiting_max) {
  shared_->owner = std::move(owner);
  shared_->memory = std::move(memory);
  if (!simulated())
    thread_ = std::thread{[s = shared_] { s->run(); }};
}

void staging_queue::acquire(
  std::uint64_t size_bytes, std::weak_ptr<void> asker, completion<memory_block> done) {
  status refused;
  {
    std::lock_guard guard{shared_->mutex};
    if (shared_->stopping)
      refused = {errc::unavailable, "{} is closed", shared_->owner};
    else if (size_bytes > shared_->memory->capacity_bytes())
      refused = {
        errc::no_space, "a window of {} bytes, but the staging memory has {} in all", size_bytes,
        shared_->memory->capacity_bytes()};
    else if (shared_->waiting.size() >= waiting_max_)
      refused = {errc::busy, "{} windows wait for staging memory already; try again", waiting_max_};
    else
      shared_->waiting.push_back({size_bytes, std::move(asker), std::move(done)});
  }
  if (!refused.ok())
    // Moved only when it was not refused.
    // NOLINTNEXTLINE(bugprone-use-after-move)
    return done(fail(std::move(refused)));
  shared_->wake();
}

void staging_queue::nudge() {
  {
    std::lock_guard guard{shared_->mutex};
    shared_->asker_gone = true;
  }
  shared_->wake();
}

void staging_queue::stop() {
  {
    std::lock_guard guard{shared_->mutex};
    shared_->stopping = true;
  }
  shared_->wake();
  join_or_detach(thread_);
  if (simulated())
    shared_->end_gone();
}

void staging_queue::shared::wake() {
  {
    std::lock_guard guard{mutex};
    if (std::exchange(returned, true) && simulated())
      return;
  }
  changed.notify_one();
  if (simulated())
    simulated()->run_later([self = shared_from_this()] { self->run_simulated(); });
}

void staging_queue::shared::run_simulated() {
  auto* machine = simulated();
  if (!machine)
    return;
  returned = false;
  end_gone();
  while (serve_first()) {
  }
  if (!waiting.empty() && !std::exchange(returned, true))
    machine->run_later([self = shared_from_this()] { self->run_simulated(); }, look_again);
}

void staging_queue::shared::run() {
  for (;;) {
    end_gone();
    if (serve_first())
      continue;
    std::unique_lock guard{mutex};
    if (stopping && waiting.empty())
      return;
    auto woken = [this] { return returned || stopping; };
    if (waiting.empty())
      changed.wait(guard, woken);
    else
      changed.wait_for(guard, look_again, woken);
    returned = false;
  }
}

// Removes the waiters whose askers are destroyed; all waiters when stopping.
void staging_queue::shared::end_gone() {
  std::vector<waiter> gone;
  status why{errc::cancelled, "no request waits for this window any more"};
  {
    std::lock_guard guard{mutex};
    if (stopping)
      why = {errc::unavailable, "{} is closed", owner};
    else if (!std::exchange(asker_gone, false))
      return;
    auto left = std::stable_partition(waiting.begin(), waiting.end(), [this](const waiter& w) {
      return !stopping && !w.asker.expired();
    });
    std::move(left, waiting.end(), std::back_inserter(gone));
    waiting.erase(left, waiting.end());
  }
  for (auto& w : gone)
    w.done(fail(why));
}

// Only this thread removes waiters, so the first one stays first while the lock is released.
bool staging_queue::shared::serve_first() {
  std::uint64_t size_bytes = 0;
  {
    std::lock_guard guard{mutex};
    if (waiting.empty())
      return false;
    size_bytes = waiting.front().size_bytes;
  }
  auto lent = lend(size_bytes);
  if (!lent && lent.error().code() == errc::no_space)
    return false;
  completion<memory_block> done;
  {
    std::lock_guard guard{mutex};
    done = std::move(waiting.front().done);
    waiting.pop_front();
  }
  done(std::move(lent));
  return true;
}

// Makes a block whose owner returns the memory first, and then wakes the queue.
result<memory_block> staging_queue::shared::lend(std::uint64_t size_bytes) {
  auto block = memory->allocate(size_bytes, direct_io_bytes);
  if (!block)
    return block;
  auto data = block->data;
  auto returns = [owner = std::move(block->owner), lender = weak_from_this()](void*) mutable {
    owner.reset();
    if (auto queue = lender.lock())
      queue->wake();
  };
  block->owner = std::shared_ptr<void>{static_cast<void*>(data), std::move(returns)};
  return block;
}

} // namespace millrace::storage::io
