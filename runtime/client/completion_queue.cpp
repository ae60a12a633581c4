// The tokens, and the eventfd that is set while there are some.
#include <millrace/core/process_mark.hpp>
#include <millrace/net/socket/unique_fd.hpp>
#include <millrace/runtime/client/completion_queue.hpp>

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>

namespace millrace {

// The eventfd is changed with the mutex held, so that it always agrees with `ready`. It is never
// written twice without a read in between, and so does not block.
struct completion_queue::state {
  const process_mark made_in; // a forked child shares the counter of the descriptor
  net::unique_fd event;
  std::uint32_t outstanding_max = 0;
  std::mutex mutex;
  std::condition_variable came;
  std::deque<std::uint64_t> ready;
  std::uint32_t outstanding = 0; // promised places; those of `ready`, too

  void put(std::uint64_t token) {
    {
      std::lock_guard guard{mutex};
      ready.push_back(token);
      if (ready.size() == 1)
        ::eventfd_write(event.get(), 1);
    }
    came.notify_one();
  }

  // With the mutex held.
  std::size_t take(std::span<std::uint64_t> tokens) {
    auto count = std::min(tokens.size(), ready.size());
    if (count == 0)
      return 0;
    auto end = ready.begin() + static_cast<std::ptrdiff_t>(count);
    std::copy(ready.begin(), end, tokens.begin());
    ready.erase(ready.begin(), end);
    outstanding -= static_cast<std::uint32_t>(count);
    eventfd_t ignored = 0;
    if (ready.empty())
      ::eventfd_read(event.get(), &ignored);
    return count;
  }
};

result<completion_queue> completion_queue::open(std::uint32_t outstanding_max) {
  auto made = std::make_shared<state>();
  made->event = net::unique_fd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!made->event)
    return fail(status_from_errno(
      errno, "making the event descriptor of a completion queue ('ulimit -n' bounds descriptors)"));
  made->outstanding_max = outstanding_max;
  return completion_queue{std::move(made)};
}

status completion_queue::refusal() const {
  if (state_->made_in.is_here())
    return {};
  return {
    errc::unavailable, "this completion queue belongs to process {}; open one here",
    state_->made_in.process()};
}

status completion_queue::take_place() const {
  if (auto why = refusal(); !why.ok())
    return why;
  std::lock_guard guard{state_->mutex};
  if (state_->outstanding >= state_->outstanding_max)
    return {
      errc::busy,
      "the completion queue has {} tokens of at most {}, {} of them ready: take those, or open the "
      "queue with room for more",
      state_->outstanding, state_->outstanding_max, state_->ready.size()};
  ++state_->outstanding;
  return {};
}

void completion_queue::put(const std::weak_ptr<state>& queue, std::uint64_t token) {
  if (auto s = queue.lock(); s && s->made_in.is_here())
    s->put(token);
}

std::size_t completion_queue::poll(std::span<std::uint64_t> tokens) const {
  if (!state_->made_in.is_here())
    return 0;
  std::lock_guard guard{state_->mutex};
  return state_->take(tokens);
}

std::size_t completion_queue::wait(std::span<std::uint64_t> tokens, time_point deadline) const {
  // One without room would be woken in the place of another that has some.
  if (tokens.empty() || !state_->made_in.is_here())
    return 0;
  auto& s = *state_;
  std::unique_lock lock{s.mutex};
  // In parts: the standard library adds to a deadline that is far away until it overflows.
  time_point until;
  do
    until = std::min<time_point>(deadline, steady_clock::now() + std::chrono::hours{1});
  while (!wait_until(s.came, lock, until, [&s] { return !s.ready.empty(); }) && until < deadline);
  return s.take(tokens);
}

int completion_queue::descriptor() const noexcept { return state_->event.get(); }

} // namespace millrace
