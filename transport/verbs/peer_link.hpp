// The verbs driver's connection to one peer: its rails, and the memory that each side opens to the
// other. Made by the driver.
#pragma once

#include <millrace/net/channel/channel.hpp>
#include <millrace/transport/driver_message.hpp>
#include <millrace/transport/verbs/asking_side.hpp>
#include <millrace/transport/verbs/lending_side.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace millrace::transport::verbs {

/// Connects the rails, and hands messages and events to the two sides.
/// Threads: the completion thread, except where stated.
class peer_link : public completion_source,
                  public rail_owner,
                  public std::enable_shared_from_this<peer_link> {
public:
  static std::shared_ptr<peer_link> make(std::shared_ptr<net::channel> c, link_parts parts);

  // These calls may come from any thread:

  const net::peer_info& peer() const noexcept { return channel_->peer(); }
  bool reachable() const noexcept { return reachable_ && channel_->is_open(); }
  /// Announces this process's rails.
  void open();
  /// Handles a message of the peer.
  /// Errors:  `protocol_error`; the caller must close the channel.
  [[nodiscard]] status take(std::span<const std::byte> body);
  void start(std::shared_ptr<running_transfer> t) { asking_.start(std::move(t)); }
  /// Ends everything without blocking. No device touches a transfer's memory once the last transfer
  /// has been completed. `then` runs on the completion thread.
  void close(const status& why, std::function<void()> then);
  verbs_stats stats() const;

  // The calls below come from the completion thread:

  void close_now(const status& why);
  bool serve() override;
  void arm() override { rails_.arm(); }
  bool tick(time_point now) override;
  void port_lost(const device& d) override { rails_.port_lost(d); }

  void send_connect(const connect& m) override {
    send_or_close(*channel_, message_kind::connect, m);
  }
  void send_ready(const ready& m) override { send_or_close(*channel_, message_kind::ready, m); }
  void send_lost(const lost& m) override { send_or_close(*channel_, message_kind::lost, m); }
  void rail_changed(rail& r) override;
  void request_done(const std::shared_ptr<running_transfer>& t, const request&) override {
    asking_.request_done(t);
  }
  void request_undone(
    const std::shared_ptr<running_transfer>& t, request r, undone how, const status& why) override {
    asking_.request_undone(t, std::move(r), how, why);
  }

private:
  peer_link(std::shared_ptr<net::channel> c, link_parts parts);

  status take(message_kind kind, wire_reader& reader, std::uint64_t size_bytes);
  template <class Message, class F>
  status deliver(wire_reader& reader, std::uint64_t size_bytes, F f);
  void on_hello(const hello& m);

  const std::shared_ptr<net::channel> channel_;
  const link_parts parts_;
  std::atomic<bool> reachable_ = false;
  std::atomic<std::uint64_t> backlog_bytes_ = 0; // messages that wait for the completion thread
  mutable std::mutex mutex_;                     // guards the statistics
  std::vector<verbs_rail_stats> rail_stats_;

  hello ours_;
  bool closed_ = false;
  bool greeted_ = false;
  lending_side lending_;
  rail_set rails_; // destroyed before the grants
  asking_side asking_;
};

} // namespace millrace::transport::verbs
