// A few threads that call the system's resolver, and the requests that wait for them.
#include <millrace/core/background_thread.hpp>
#include <millrace/core/process_mark.hpp>
#include <millrace/net/socket/resolver.hpp>

#include <netdb.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <unordered_map>

namespace millrace::net {

namespace {

using addresses = std::vector<socket_address>;

result<addresses> ask_system(const std::string& host, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  auto error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0)
    return fail(
      errc::unavailable, "the name {} cannot be looked up: {}", host,
      error == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(error));
  addresses out;
  for (auto* a = found; a; a = a->ai_next)
    if (auto one = socket_address::from(a->ai_addr, a->ai_addrlen))
      out.push_back(*one);
  ::freeaddrinfo(found);
  return out;
}

// Keeps the resolver's order but alternates the families: if one of them is not routed, little time
// is lost.
addresses taking_turns(const addresses& in) {
  addresses first, second, out;
  for (auto& a : in)
    (a.family() == in.front().family() ? first : second).push_back(a);
  for (std::size_t i = 0; i < std::max(first.size(), second.size()); ++i) {
    if (i < first.size())
      out.push_back(first[i]);
    if (i < second.size())
      out.push_back(second[i]);
  }
  return out;
}

/// A request that waits for a name. The lookup or the deadline answers it, once.
class waiter {
public:
  waiter(const std::shared_ptr<io_loop>& loop, std::uint16_t port, completion<addresses> done)
    : loop_(loop), port_(port), done_(std::move(done)) {}
  waiter(const waiter&) = delete;
  ~waiter() { answer(fail(errc::unavailable, "the I/O loop has stopped")); }

  // The lookup may take long: it must not keep the loop alive.
  static void post(const std::shared_ptr<waiter>& w, const result<addresses>& found) {
    if (auto loop = w->loop_.lock())
      loop->post([w, found] { w->answer(found); });
  }

  void answer(result<addresses> found) {
    completion<addresses> done;
    {
      std::lock_guard guard{mutex_};
      done = std::exchange(done_, nullptr);
    }
    if (!done)
      return;
    if (found)
      for (auto& a : *found)
        a = a.with_port(port_);
    done(std::move(found));
  }

private:
  const std::weak_ptr<io_loop> loop_;
  const std::uint16_t port_;
  std::mutex mutex_;
  completion<addresses> done_;
};

class resolver_impl final : public resolver, public std::enable_shared_from_this<resolver_impl> {
public:
  resolver_impl(lookup ask, resolver_options options) : ask_(std::move(ask)), options_(options) {}

  void resolve(
    const std::shared_ptr<io_loop>& loop, const std::string& host, std::uint16_t port,
    time_point deadline, completion<addresses> done) override {
    auto w = std::make_shared<waiter>(loop, port, std::move(done));
    if (auto numeric = ask_system(host, AI_NUMERICHOST))
      return waiter::post(w, numeric);
    if (auto bad = enter(host, w); !bad.ok())
      return waiter::post(w, fail(bad));
    auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - steady_clock::now()).count();
    loop->run_after(
      static_cast<std::uint32_t>(std::clamp<std::int64_t>(left, 0, 1u << 30)),
      [self = shared_from_this(), weak = std::weak_ptr{w}, host] {
        if (auto late = weak.lock())
          self->give_up(host, late);
      });
  }

private:
  status enter(const std::string& host, const std::shared_ptr<waiter>& w) {
    std::lock_guard guard{mutex_};
    auto known = waiting_.find(host);
    if (known != waiting_.end()) {
      known->second.push_back(w);
      return {};
    }
    if (waiting_.size() >= options_.lookups_max)
      return {errc::busy, "{} names are being looked up already", waiting_.size()};
    waiting_[host].push_back(w);
    queue_.push_back(host);
    return threads_ < options_.threads_max ? start_thread() : status{};
  }

  // The lookup continues: others may wait for it, and it cannot be stopped.
  void give_up(const std::string& host, const std::shared_ptr<waiter>& w) {
    {
      std::lock_guard guard{mutex_};
      if (auto found = waiting_.find(host); found != waiting_.end())
        std::erase(found->second, w);
    }
    w->answer(fail(errc::deadline_exceeded, "the name {} was not looked up in time", host));
  }

  status start_thread() {
    try {
      // Detached: a lookup that hangs must not delay anything, nor the end of the process.
      background_thread([self = shared_from_this()] { self->work(); }).detach();
      ++threads_;
    } catch (const std::system_error& e) {
      if (threads_ > 0)
        return {};
      waiting_.erase(queue_.back());
      queue_.pop_back();
      return {errc::busy, "no thread to look up a name: {}", e.what()};
    }
    return {};
  }

  void work() {
    std::unique_lock lock{mutex_};
    while (!queue_.empty()) {
      auto host = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      auto found = ask_(host);
      if (found && found->empty())
        found = fail(errc::unavailable, "the name {} has no address", host);
      if (found) {
        *found = taking_turns(*found);
        found->resize(std::min<std::size_t>(found->size(), options_.addresses_max));
      }
      lock.lock();
      auto waiters = std::move(waiting_[host]);
      waiting_.erase(host);
      lock.unlock();
      for (auto& w : waiters)
        waiter::post(w, found);
      waiters.clear();
      lock.lock();
    }
    --threads_;
  }

  const lookup ask_;
  const resolver_options options_;
  std::mutex mutex_; // guards all below
  std::unordered_map<std::string, std::vector<std::shared_ptr<waiter>>> waiting_;
  std::deque<std::string> queue_;
  std::uint32_t threads_ = 0;
};

} // namespace

result<std::vector<socket_address>> look_up(const std::string& host) { return ask_system(host, 0); }

std::shared_ptr<resolver> resolver::make(lookup ask, resolver_options options) {
  return std::make_shared<resolver_impl>(std::move(ask), options);
}

std::shared_ptr<resolver> resolver::shared() {
  // Its threads may outlive `main`.
  struct shared_one {
    std::shared_ptr<resolver> of_system = make(look_up);
  };
  return one_per_process<shared_one>().of_system;
}

} // namespace millrace::net
