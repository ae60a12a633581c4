// Keeps correlation numbers and deadlines, and handles the channel's events for a client.
#include <millrace/actors/wire/remote_node.hpp>
#include <millrace/core/clock.hpp>
#include <millrace/core/planted_defect.hpp>

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

namespace millrace::actors {

namespace {

using net::channel;
using net::frame;
using net::frame_kind;

// Deadlines are noticed together, at multiples of this time: so late at most.
constexpr std::chrono::milliseconds tick{100};

time_point tick_after(time_point deadline) {
  auto at = deadline.time_since_epoch();
  return time_point{at - at % tick + tick};
}

struct waiting {
  std::function<void(raw_reply)> done;
  time_point deadline;
  const channel* via = nullptr; // null until the request has been sent
};

class remote_node_impl : public remote_node {
public:
  remote_node_impl(
    std::shared_ptr<net::io_loop> loop, std::shared_ptr<transport::fabric> fabric,
    std::string address)
    : loop_(std::move(loop)), fabric_(std::move(fabric)), address_(std::move(address)) {}

  void open(const net::link_options& options);

  const std::string& address() const noexcept override { return address_; }
  bool is_connected() const override { return link_->open_channel() != nullptr; }

  void ask(
    std::span<const std::byte> body, std::uint32_t timeout_ms,
    std::function<void(raw_reply)> done) override {
    auto number = next_++;
    auto deadline = steady_clock::now() + std::chrono::milliseconds{timeout_ms};
    {
      std::unique_lock guard{mutex_};
      if (!closed_.ok()) {
        guard.unlock();
        return done(fail(closed_));
      }
      waiting_.emplace(number, waiting{std::move(done), deadline});
    }
    tick_for(deadline);
    if (auto open = link_->open_channel())
      return send(number, body, std::move(open));
    link_->acquire([weak = weak_from_this(), number, body = byte_buffer{body.begin(), body.end()}](
                     result<std::shared_ptr<channel>> c) {
      if (auto self = std::static_pointer_cast<remote_node_impl>(weak.lock()))
        self->send(number, body, std::move(c));
    });
  }

  void close(const status& why) override {
    std::unordered_map<std::uint64_t, waiting> failed;
    {
      std::lock_guard guard{mutex_};
      if (!closed_.ok())
        return;
      closed_ = why;
      failed.swap(waiting_);
    }
    link_->close(why);
    for (auto& [number, w] : failed)
      w.done(fail(why));
  }

  // Called by the channel, on the loop:

  void on_frame(channel& c, frame f) {
    if (f.kind == frame_kind::driver)
      return fabric_->on_frame(c, std::move(f));
    if (f.kind != frame_kind::reply)
      return;
    if (auto w = take(f.correlation))
      w->done(f.body);
  }

  void on_close(channel& c, const status& why) {
    fabric_->peer_closed(c, why);
    std::vector<waiting> failed;
    {
      std::lock_guard guard{mutex_};
      for (auto i = waiting_.begin(); i != waiting_.end();) {
        if (i->second.via == &c) {
          failed.push_back(std::move(i->second));
          i = waiting_.erase(i);
        } else {
          ++i;
        }
      }
    }
    // The error names the service's address, by which the caller knows it. The channel names only
    // the process.
    auto named = why.within("the service at " + address_);
    for (auto& w : failed)
      w.done(fail(named));
  }

  const std::shared_ptr<transport::fabric>& fabric() const { return fabric_; }

private:
  void send(
    std::uint64_t number, std::span<const std::byte> body, result<std::shared_ptr<channel>> c) {
    status bad;
    if (!c) {
      bad = c.error();
    } else {
      {
        std::lock_guard guard{mutex_};
        auto found = waiting_.find(number);
        if (found == waiting_.end())
          return;
        found->second.via = c->get();
      }
      bad = (*c)->send(frame_kind::request, number, body);
    }
    if (bad.ok())
      return;
    if (auto w = take(number))
      w->done(fail(bad));
  }

  std::optional<waiting> take(std::uint64_t number) {
    std::lock_guard guard{mutex_};
    auto found = waiting_.find(number);
    if (found == waiting_.end())
      return std::nullopt;
    auto w = std::move(found->second);
    waiting_.erase(found);
    return w;
  }

  // Most requests have their answers long before, so that the loop is not woken for each.
  void tick_for(time_point deadline) {
    auto at = tick_after(deadline);
    {
      std::lock_guard guard{mutex_};
      if (at >= ticks_at_ || is_planted(defect::durable_never_answered))
        return;
      ticks_at_ = at;
    }
    auto left = std::chrono::ceil<std::chrono::milliseconds>(at - steady_clock::now()).count();
    auto delay_ms = std::clamp<std::int64_t>(left, 0, std::numeric_limits<std::uint32_t>::max());
    loop_->run_after(static_cast<std::uint32_t>(delay_ms), [weak = weak_from_this(), at] {
      if (auto self = std::static_pointer_cast<remote_node_impl>(weak.lock()))
        self->tick_at(at);
    });
  }

  void tick_at(time_point at) {
    std::vector<waiting> late;
    auto next = time_point::max();
    {
      std::lock_guard guard{mutex_};
      // One that an earlier tick has taken the place of.
      if (at != ticks_at_)
        return;
      ticks_at_ = time_point::max();
      auto now = steady_clock::now();
      for (auto i = waiting_.begin(); i != waiting_.end();) {
        if (i->second.deadline < now) {
          late.push_back(std::move(i->second));
          i = waiting_.erase(i);
        } else {
          next = std::min(next, i->second.deadline);
          ++i;
        }
      }
    }
    if (next != time_point::max())
      tick_for(next);
    for (auto& w : late)
      w.done(
        fail(errc::deadline_exceeded, "no answer from {} within the operation's time", address_));
  }

  std::shared_ptr<net::io_loop> loop_;
  std::shared_ptr<transport::fabric> fabric_;
  const std::string address_;
  std::shared_ptr<net::link> link_;
  std::atomic<std::uint64_t> next_ = 1;
  std::mutex mutex_;
  time_point ticks_at_ = time_point::max(); // the next look at deadlines
  status closed_;
  std::unordered_map<std::uint64_t, waiting> waiting_;
};

// Does not keep the node alive longer than its users do.
class client_handler : public net::channel_handler {
public:
  explicit client_handler(std::weak_ptr<remote_node_impl> node) : node_(std::move(node)) {}

  void on_open(const std::shared_ptr<channel>& c) override {
    if (auto node = node_.lock())
      node->fabric()->peer_opened(c);
  }
  void on_frame(channel& c, frame f) override {
    if (auto node = node_.lock())
      node->on_frame(c, std::move(f));
  }
  void on_close(channel& c, const status& why) override {
    if (auto node = node_.lock())
      node->on_close(c, why);
  }

private:
  std::weak_ptr<remote_node_impl> node_;
};

void remote_node_impl::open(const net::link_options& options) {
  auto weak =
    std::weak_ptr<remote_node_impl>(std::static_pointer_cast<remote_node_impl>(shared_from_this()));
  link_ =
    net::link::make(loop_, options, [weak] { return std::make_shared<client_handler>(weak); });
}

} // namespace

std::shared_ptr<remote_node> remote_node::create(
  const std::shared_ptr<net::io_loop>& loop, std::shared_ptr<transport::fabric> fabric,
  const net::link_options& options) {
  auto node = std::make_shared<remote_node_impl>(loop, std::move(fabric), options.address);
  node->open(options);
  return node;
}

} // namespace millrace::actors
