// Epoll with generations, and an eventfd that interrupts it.
// Used by `io_loop` alone.
#include <millrace/core/assert.hpp>
#include <millrace/net/loop/poller.hpp>

#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace millrace::net {

namespace {

// Generations count from 1, so no watcher has this number.
constexpr std::uint64_t interrupt_token = 0;

// While signals are polled, descriptors are looked at only so often: that is a system call.
constexpr std::uint32_t epoll_interval = 16;

std::uint64_t token_of(int fd, std::uint32_t generation) noexcept {
  return static_cast<std::uint64_t>(generation) << 32 | static_cast<std::uint32_t>(fd);
}

} // namespace

result<std::unique_ptr<poller>> poller::open() {
  auto made = std::make_unique<poller>();
  made->epoll_ = unique_fd{::epoll_create1(EPOLL_CLOEXEC)};
  if (!made->epoll_)
    return fail(status_from_errno(errno, "making an epoll descriptor"));
  made->event_ = unique_fd{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!made->event_)
    return fail(status_from_errno(errno, "making an event descriptor"));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = interrupt_token;
  if (::epoll_ctl(made->epoll_.get(), EPOLL_CTL_ADD, made->event_.get(), &event) != 0)
    return fail(status_from_errno(errno, "watching the event descriptor"));
  return made;
}

status poller::watch(int fd, std::uint32_t events, callback f) {
  auto entry = std::make_shared<watcher>();
  entry->generation = ++generations_ ? generations_ : ++generations_;
  entry->f = std::move(f);
  epoll_event event{};
  event.events = events;
  event.data.u64 = token_of(fd, entry->generation);
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    return status_from_errno(errno, "watching a descriptor");
  watchers_[fd] = std::move(entry);
  return {};
}

status poller::rewatch(int fd, std::uint32_t events) {
  auto found = watchers_.find(fd);
  if (found == watchers_.end())
    return status{errc::invalid_argument, "the descriptor is not watched"};
  epoll_event event{};
  event.events = events;
  event.data.u64 = token_of(fd, found->second->generation);
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0)
    return status_from_errno(errno, "watching a descriptor for other events");
  return {};
}

void poller::unwatch(int fd) {
  auto found = watchers_.find(fd);
  if (found == watchers_.end())
    return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  std::erase_if(signals_, [token = token_of(fd, found->second->generation)](auto& s) {
    if (s.token == token)
      s.signal->polled = false;
    return s.token == token;
  });
  // The callback's destructor may call back into this poller: erase first.
  auto last = std::move(found->second);
  watchers_.erase(found);
}

void poller::clear() {
  while (!watchers_.empty())
    unwatch(watchers_.begin()->first);
}

void poller::poll(int fd, shared_signal& signal) {
  auto found = watchers_.find(fd);
  if (found == watchers_.end() || std::exchange(signal.polled, true))
    return;
  signals_.push_back({token_of(fd, found->second->generation), &signal});
}

bool poller::rest() {
  std::erase_if(signals_, [](auto& s) { return !(s.signal->polled = !s.signal->ask_for_event()); });
  return signals_.empty();
}

bool poller::shares_core() noexcept {
  if (signals_.empty())
    return false;
  auto core = static_cast<std::uint32_t>(::sched_getcpu()) + 1;
  bool shared = false;
  for (auto& s : signals_)
    shared |= s.signal->shares_core(core);
  return shared && core != 0;
}

int poller::raised() {
  int n = 0;
  for (auto& s : signals_)
    if (s.signal->raised() && n < static_cast<int>(ready_.size())) {
      ready_[n].events = 0;
      ready_[n++].data.u64 = s.token;
    }
  return n;
}

int poller::wait(int timeout_ms) {
  auto first = signals_.empty() ? 0 : raised();
  auto polls = first > 0 || (timeout_ms == 0 && !signals_.empty());
  if (polls && ++waits_without_epoll_ < epoll_interval)
    return first;
  waits_without_epoll_ = 0;
  auto room = static_cast<int>(ready_.size()) - first;
  if (room == 0)
    return first;
  auto n = ::epoll_wait(epoll_.get(), ready_.data() + first, room, first > 0 ? 0 : timeout_ms);
  MILLRACE_ASSERT(n >= 0 || errno == EINTR);
  return first + std::max(n, 0);
}

void poller::dispatch(int ready, activity& doing) {
  for (int i = 0; i < ready; ++i) {
    auto token = ready_[i].data.u64;
    if (token == interrupt_token) {
      std::uint64_t count = 0;
      [[maybe_unused]] auto n = ::read(event_.get(), &count, sizeof(count));
      continue;
    }
    auto found = watchers_.find(static_cast<int>(static_cast<std::uint32_t>(token)));
    if (found == watchers_.end() || found->second->generation != token >> 32)
      continue;
    auto keep = found->second;
    activity::scope running{doing, keep->f.target_type()};
    keep->f(ready_[i].events);
  }
}

void poller::interrupt() noexcept {
  std::uint64_t one = 1;
  [[maybe_unused]] auto n = ::write(event_.get(), &one, sizeof(one));
}

} // namespace millrace::net
