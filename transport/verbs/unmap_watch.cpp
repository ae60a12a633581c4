// Uses userfaultfd for its events only.
// Made by the driver with its registration cache.
#include <millrace/core/background_thread.hpp>
#include <millrace/transport/verbs/unmap_watch.hpp>

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

namespace millrace::transport::verbs {

namespace {

constexpr std::uint64_t events = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMOVE |
  UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_PAGEFAULT_FLAG_WP;

net::unique_fd open_with_events() noexcept {
  constexpr int flags = O_CLOEXEC | O_NONBLOCK;
  // A process without privileges may open it for faults in user mode only. No faults are handled
  // here anyway.
  int fd = static_cast<int>(syscall(SYS_userfaultfd, flags | UFFD_USER_MODE_ONLY));
  if (fd < 0)
    fd = static_cast<int>(syscall(SYS_userfaultfd, flags));
  net::unique_fd out{fd};
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = events;
  if (!out || ioctl(out.get(), UFFDIO_API, &api) != 0)
    return {};
  return out;
}

uffdio_range range_of(const memory_range& where) noexcept {
  return {reinterpret_cast<std::uintptr_t>(where.data), where.size_bytes};
}

} // namespace

bool can_watch_unmaps() noexcept { return static_cast<bool>(open_with_events()); }

std::unique_ptr<unmap_watch> unmap_watch::open() {
  std::unique_ptr<unmap_watch> w{new unmap_watch};
  w->fd_ = open_with_events();
  w->stop_ = net::unique_fd{eventfd(0, EFD_CLOEXEC)};
  if (!w->fd_ || !w->stop_)
    return nullptr;
  w->thread_ = background_thread([raw = w.get()] { raw->serve(); });
  return w;
}

unmap_watch::~unmap_watch() {
  if (!thread_.joinable())
    return;
  std::uint64_t one = 1;
  [[maybe_unused]] auto n = write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

bool unmap_watch::watch(const memory_range& where) noexcept {
  uffdio_register r{};
  r.range = range_of(where);
  r.mode = UFFDIO_REGISTER_MODE_WP;
  return ioctl(fd_.get(), UFFDIO_REGISTER, &r) == 0;
}

void unmap_watch::unwatch(const memory_range& where) noexcept {
  auto r = range_of(where);
  // This fails for memory that is unmapped, which is not watched any more anyway.
  ioctl(fd_.get(), UFFDIO_UNREGISTER, &r);
}

void unmap_watch::take(std::vector<memory_range>& out) {
  std::array<memory_range, kept_max> taken;
  std::size_t count = 0;
  {
    std::lock_guard guard{mutex_};
    std::copy_n(kept_.begin(), count_, taken.begin());
    count = std::exchange(count_, 0);
  }
  out.insert(out.end(), taken.begin(), taken.begin() + static_cast<std::ptrdiff_t>(count));
}

void unmap_watch::serve() noexcept {
  pthread_setname_np(pthread_self(), "mr.unmap");
  while (true) {
    pollfd ready[2] = {{fd_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}};
    if (poll(ready, 2, -1) < 0)
      continue;
    if (ready[1].revents != 0)
      return;
    if (ready[0].revents & POLLIN)
      read_one();
  }
}

// Reading lets the thread that unmaps continue, so it is done under the lock.
void unmap_watch::read_one() noexcept {
  std::lock_guard guard{mutex_};
  uffd_msg m{};
  if (read(fd_.get(), &m, sizeof(m)) != static_cast<ssize_t>(sizeof(m)))
    return;
  switch (m.event) {
  case UFFD_EVENT_UNMAP:
  case UFFD_EVENT_REMOVE:
    return keep(m.arg.remove.start, m.arg.remove.end);
  case UFFD_EVENT_REMAP:
    return keep(m.arg.remap.from, m.arg.remap.from + m.arg.remap.len);
  default:
    return;
  }
}

// If `take` was not called for long, the kept ranges become one range around all of them.
void unmap_watch::keep(std::uint64_t first, std::uint64_t last) noexcept {
  memory_range r{reinterpret_cast<std::byte*>(first), last - first};
  if (count_ < kept_max) {
    kept_[count_++] = r;
    return;
  }
  auto* from = r.data;
  auto* to = r.data + r.size_bytes;
  for (auto& k : kept_) {
    from = std::min(from, k.data);
    to = std::max(to, k.data + k.size_bytes);
  }
  kept_[0] = {from, static_cast<std::uint64_t>(to - from)};
  count_ = 1;
}

} // namespace millrace::transport::verbs
