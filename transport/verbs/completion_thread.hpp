// The thread that owns every queue pair in use.
// Made by the driver; each `peer_link` runs on it.
#pragma once

#include <millrace/core/clock.hpp>
#include <millrace/transport/verbs/descriptor_watch.hpp>
#include <millrace/transport/verbs/device.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace millrace::transport::verbs {

/// A connection to one peer, which the thread serves.
class completion_source {
public:
  virtual ~completion_source() = default;
  /// Takes completions and posts requests. Returns true if anything happened.
  virtual bool serve() = 0;
  /// Called before a sleep: completions must wake the thread.
  virtual void arm() = 0;
  /// Checks deadlines. Returns whether there will be some soon.
  virtual bool tick(time_point now) = 0;
  /// Called when a port of a device went down.
  virtual void port_lost(const device& d) = 0;
};

/// Runs posted functions in order and serves its sources. It polls while there is work and
/// `poll_us` longer, then sleeps on the devices' completion channels.
///
/// *Problem*: if any thread could touch queue pairs, completions and their transfers, each of them
/// would need a lock. So one thread owns them all. Calls that block in the kernel for long
/// (registering, connecting) run elsewhere.
class completion_thread : public std::enable_shared_from_this<completion_thread> {
public:
  /// Starts the thread, which runs until `stop`.
  /// Errors:  `no_space` when the process may not have more descriptors or threads.
  static result<std::shared_ptr<completion_thread>> start(
    device_list devices, const verbs_options& options);

  /// Runs `f` on the thread; drops it after `stop`. Threads: any.
  void post(std::function<void()> f);
  /// Adds a source. On the thread.
  void add(std::shared_ptr<completion_source> source);
  void remove(const completion_source* source);
  bool on_thread() const noexcept { return std::this_thread::get_id() == thread_.get_id(); }
  /// Returns the bytes in flight over a device, for all rails. On the thread.
  std::uint64_t& inflight_bytes(std::uint32_t device_index) {
    return inflight_bytes_[device_index];
  }

  /// Runs the posted functions and waits for the thread. When the thread itself calls (the last
  /// owner may go inside a completion), it ends soon after instead.
  void stop();

private:
  completion_thread(device_list devices, const verbs_options& options, net::unique_fd wake);
  void run();
  bool is_stopping();
  bool run_posted();
  void look_at_deadlines();
  bool serve_all();
  void sleep();
  void lose_device(int broken);
  void take_events();
  void take_device_event(device& d);

  const device_list devices_;
  const std::chrono::microseconds poll_;
  const std::chrono::milliseconds sleep_;
  const bool near_devices_;
  const net::unique_fd wake_;
  descriptor_watch watch_;
  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;
  bool stopping_ = false;
  std::atomic<bool> sleeping_ = false;
  std::vector<std::shared_ptr<completion_source>> sources_;
  std::vector<std::uint64_t> inflight_bytes_;
  bool deadlines_ = false; // some source has deadlines
  std::thread thread_;
};

} // namespace millrace::transport::verbs
