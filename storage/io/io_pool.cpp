// A queue of jobs and the threads that run them. Called by the engine of a kind that uses a disk.
#include <millrace/core/background_thread.hpp>
#include <millrace/core/gathering.hpp>
#include <millrace/core/simulated_machine.hpp>
#include <millrace/storage/io/io_pool.hpp>

namespace millrace::storage::io {

io_pool::io_pool(std::uint32_t threads, std::string owner) : owner_(std::move(owner)) {
  queue_->idle = threads;
  for (std::uint32_t i = 0; i < threads && !simulated(); ++i)
    threads_.push_back(background_thread([jobs = queue_] { run(jobs); }));
}

void io_pool::post(job work) {
  {
    std::lock_guard guard{queue_->mutex};
    if (!queue_->stopping) {
      queue_->jobs.push_back(std::move(work));
      queue_->changed.notify_one();
      if (simulated())
        simulated()->run_later([jobs = queue_] { run_simulated(jobs); });
      return;
    }
  }
  work({errc::unavailable, "{} is closed", owner_});
}

void io_pool::post_all(
  std::vector<std::function<status()>> parts, std::function<void(status)> done) {
  if (parts.empty())
    return done({});
  auto ended = gathered(parts.size(), [done = std::move(done)](const result<void>& outcome) {
    done(outcome ? status{} : outcome.error());
  });
  for (auto& part : parts)
    post([ended, work = std::move(part)](const status& stopped) mutable {
      auto outcome = stopped.ok() ? work() : stopped;
      // The work's captures are released before the operation is reported as over.
      work = nullptr;
      ended(outcome.ok() ? result<void>{} : fail(std::move(outcome)));
    });
}

void io_pool::run(const std::shared_ptr<queue>& jobs) {
  std::unique_lock guard{jobs->mutex};
  for (;;) {
    jobs->changed.wait(guard, [&] { return jobs->stopping || !jobs->jobs.empty(); });
    if (jobs->jobs.empty())
      return;
    run_one(*jobs, guard);
  }
}

// While a job waits, other things happen, and its thread is not there for other jobs.
void io_pool::run_simulated(const std::shared_ptr<queue>& jobs) {
  std::unique_lock held{jobs->mutex};
  if (jobs->jobs.empty())
    return;
  if (jobs->idle == 0) {
    ++jobs->late;
    return;
  }
  --jobs->idle;
  run_one(*jobs, held);
  ++jobs->idle;
  auto* machine = simulated();
  for (; machine && jobs->late > 0; --jobs->late)
    machine->run_later([jobs] { run_simulated(jobs); });
}

void io_pool::run_one(queue& jobs, std::unique_lock<std::mutex>& guard) {
  {
    auto work = std::move(jobs.jobs.front());
    jobs.jobs.pop_front();
    guard.unlock();
    work({});
    // The captures of the job are destroyed here, with no lock held.
  }
  guard.lock();
}

void io_pool::refuse() {
  {
    std::lock_guard guard{queue_->mutex};
    queue_->stopping = true;
  }
  queue_->changed.notify_all();
}

void io_pool::abandon() {
  refuse();
  for (auto& thread : threads_)
    thread.detach();
  threads_.clear();
}

void io_pool::stop() {
  refuse();
  for (auto& thread : threads_)
    join_or_detach(thread);
  // Called by a job of the only thread, or there is none. The jobs behind it are run here.
  run(queue_);
}

std::thread start_thread(std::function<void()> job) {
  if (!simulated())
    return background_thread(std::move(job));
  simulated()->run_later(std::move(job));
  return {};
}

void join_or_detach(std::thread& thread) {
  if (!thread.joinable())
    return;
  if (thread.get_id() == std::this_thread::get_id())
    thread.detach();
  else
    thread.join();
}

} // namespace millrace::storage::io
