// Compares what a loop is seen doing from time to time.
#include <millrace/core/background_thread.hpp>
#include <millrace/core/log.hpp>
#include <millrace/runtime/node/stall_watch.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace millrace::runtime {

namespace {

double seconds(steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

} // namespace

std::optional<std::string> stall_finder::look(const activity::sample& seen, time_point now) {
  auto stood = now - since_;
  if (seen.callback && last_.callback && seen.begun == last_.begun) {
    if (stood < next_)
      return {};
    stalls_ += next_ == after_ ? 1 : 0;
    next_ *= 2;
    return fmt::format(
      "the I/O loop has stood still for {:.1f} s in {}{}", seconds(stood), name_of(*seen.callback),
      seen.message ? ", while an actor handles " + name_of(*seen.message) : "");
  }
  auto stalled = last_.callback && next_ > after_;
  last_ = seen;
  since_ = now;
  next_ = after_;
  if (!stalled)
    return {};
  return fmt::format("the I/O loop goes on, after {:.1f} s at most", seconds(stood));
}

stall_watch::stall_watch(
  std::string node, std::shared_ptr<net::io_loop> loop, std::chrono::milliseconds after)
  : node_(std::move(node)), loop_(std::move(loop)), finder_(after),
    thread_(background_thread(
      [this, between = std::max(after / 4, std::chrono::milliseconds{1})] { run(between); })) {}

stall_watch::~stall_watch() {
  {
    std::lock_guard guard{mutex_};
    stopping_ = true;
  }
  stopped_.notify_one();
  thread_.join();
}

std::uint64_t stall_watch::stalls() const {
  std::lock_guard guard{mutex_};
  return finder_.stalls();
}

void stall_watch::run(std::chrono::milliseconds between) {
  std::unique_lock lock{mutex_};
  while (!stopped_.wait_for(lock, between, [this] { return stopping_; }))
    if (auto news = finder_.look(loop_->doing()->now(), steady_clock::now()))
      log().warn("node {}: {}", node_, *news);
}

} // namespace millrace::runtime
