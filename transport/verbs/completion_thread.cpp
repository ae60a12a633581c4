// Polls, sleeps, and wakes.
// Started by the driver when there is a device.
#include <millrace/core/background_thread.hpp>
#include <millrace/core/log.hpp>
#include <millrace/transport/memory/memory_distance.hpp>
#include <millrace/transport/verbs/completion_thread.hpp>

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace millrace::transport::verbs {

namespace {

// How often deadlines are checked while there are some.
constexpr std::chrono::milliseconds tick_interval{20};

// Returns 0 if the nodes of one device are unknown.
std::uint64_t nodes_of(const device_list& devices) {
  std::uint64_t out = 0;
  for (auto& d : devices) {
    if (d->node_mask() == 0)
      return 0;
    out |= d->node_mask();
  }
  return out;
}

std::vector<int> descriptors_of(const device_list& devices, int wake) {
  std::vector<int> out{wake};
  for (auto& d : devices) {
    out.push_back(d->channel()->fd);
    out.push_back(d->context()->async_fd);
  }
  return out;
}

} // namespace

completion_thread::completion_thread(
  device_list devices, const verbs_options& options, net::unique_fd wake)
  : devices_(std::move(devices)), poll_(options.poll_us), sleep_(std::max(options.sleep_ms, 1u)),
    near_devices_(options.bind_thread), wake_(std::move(wake)),
    watch_(descriptors_of(devices_, wake_.get())), inflight_bytes_(devices_.size()) {}

result<std::shared_ptr<completion_thread>> completion_thread::start(
  device_list devices, const verbs_options& options) {
  net::unique_fd wake{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!wake)
    return fail(status_from_errno(errno, "making the event that wakes the completion thread"));
  std::shared_ptr<completion_thread> t{
    new completion_thread{std::move(devices), options, std::move(wake)}};
  try {
    t->thread_ = background_thread([t] {
      t->run();
      t->run_posted(); // functions that were posted before the end
      t->sources_.clear();
    });
  } catch (const std::system_error& e) {
    return fail(errc::no_space, "starting the completion thread: {}", e.what());
  }
  return t;
}

void completion_thread::post(std::function<void()> f) {
  {
    std::lock_guard guard{mutex_};
    if (stopping_)
      return;
    posted_.push_back(std::move(f));
  }
  if (!sleeping_.load())
    return;
  std::uint64_t one = 1;
  [[maybe_unused]] auto n = write(wake_.get(), &one, sizeof(one));
}

void completion_thread::add(std::shared_ptr<completion_source> source) {
  sources_.push_back(std::move(source));
}

void completion_thread::remove(const completion_source* source) {
  std::erase_if(sources_, [&](auto& s) { return s.get() == source; });
}

void completion_thread::stop() {
  {
    std::lock_guard guard{mutex_};
    stopping_ = true;
  }
  std::uint64_t one = 1;
  [[maybe_unused]] auto n = write(wake_.get(), &one, sizeof(one));
  if (on_thread())
    thread_.detach();
  else if (thread_.joinable())
    thread_.join();
}

bool completion_thread::is_stopping() {
  std::lock_guard guard{mutex_};
  return stopping_;
}

void completion_thread::run() {
  pthread_setname_np(pthread_self(), "mr.verbs");
  if (near_devices_)
    stay_near(nodes_of(devices_));
  auto busy_until = steady_clock::now();
  auto next_look = busy_until;
  while (!is_stopping()) {
    auto happened = run_posted();
    happened |= serve_all();
    auto now = steady_clock::now();
    if (now >= next_look) {
      look_at_deadlines();
      next_look = now + tick_interval;
    }
    if (happened)
      busy_until = now + poll_;
    else if (now >= busy_until)
      sleep();
  }
}

void completion_thread::look_at_deadlines() {
  auto now = steady_clock::now();
  deadlines_ = false;
  // `tick` may remove its source.
  for (auto& s : std::vector<std::shared_ptr<completion_source>>{sources_})
    deadlines_ |= s->tick(now);
}

bool completion_thread::run_posted() {
  std::vector<std::function<void()>> due;
  {
    std::lock_guard guard{mutex_};
    due.swap(posted_);
  }
  for (auto& f : due)
    f();
  return !due.empty();
}

bool completion_thread::serve_all() {
  bool happened = false;
  // Serving may remove a source.
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    auto s = sources_[i];
    happened |= s->serve();
  }
  return happened;
}

// Completions that come after arming wake the thread. One more look finds those that came before.
void completion_thread::sleep() {
  look_at_deadlines();
  for (auto& s : sources_)
    s->arm();
  sleeping_ = true;
  bool idle = true;
  {
    std::lock_guard guard{mutex_};
    idle = posted_.empty() && !stopping_;
  }
  idle = idle && !serve_all();
  if (idle) {
    auto longest = deadlines_ ? std::min(sleep_, tick_interval) : sleep_;
    for (auto broken : watch_.sleep(longest))
      lose_device(broken);
  }
  sleeping_ = false;
  take_events();
}

void completion_thread::lose_device(int broken) {
  for (auto& d : devices_) {
    if (broken != d->context()->async_fd)
      continue;
    log().warn("RDMA device {} is gone; it is used again after a restart", d->name());
    for (auto& s : std::vector<std::shared_ptr<completion_source>>{sources_})
      s->port_lost(*d);
  }
}

void completion_thread::take_events() {
  std::uint64_t count = 0;
  [[maybe_unused]] auto n = read(wake_.get(), &count, sizeof(count));
  for (auto& d : devices_) {
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    while (ibv_get_cq_event(d->channel(), &cq, &context) == 0)
      ibv_ack_cq_events(cq, 1);
    take_device_event(*d);
  }
}

void completion_thread::take_device_event(device& d) {
  ibv_async_event event{};
  while (ibv_get_async_event(d.context(), &event) == 0) {
    auto port_down = event.event_type == IBV_EVENT_PORT_ERR &&
      static_cast<std::uint32_t>(event.element.port_num) == d.port();
    auto fatal = event.event_type == IBV_EVENT_DEVICE_FATAL;
    log().debug("RDMA device {} says: {}", d.name(), ibv_event_type_str(event.event_type));
    ibv_ack_async_event(&event);
    if (port_down || fatal)
      for (auto& s : std::vector<std::shared_ptr<completion_source>>{sources_})
        s->port_lost(d);
  }
}

} // namespace millrace::transport::verbs
