// The verbs driver's connection to one peer: its rails, its transfers in flight, and the keys of
// its regions.
// Made by the driver for each channel.
#pragma once

#include <millrace/net/channel/channel.hpp>
#include <millrace/transport/copy/copy_job.hpp>
#include <millrace/transport/verbs/completion_thread.hpp>
#include <millrace/transport/verbs/grant_book.hpp>
#include <millrace/transport/verbs/rail.hpp>
#include <millrace/transport/verbs/running_transfer.hpp>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace millrace::transport::verbs {

/// The objects that every link uses.
struct link_parts {
  std::shared_ptr<completion_thread> thread;
  std::shared_ptr<setup_pool> setup;
  std::shared_ptr<cm_hub> cm;   // null: queue pairs are connected over the channel
  std::vector<bool> cm_reaches; // for each device, by its index
  std::shared_ptr<mover_pool> movers;
  copy_limits limits;
  memory_sources sources;
  verbs_options options;
};

/// Runs the transfers with one peer, as submitter and as owner.
/// Threads: the completion thread, except where stated.
class peer_link : public completion_source,
                  public rail_owner,
                  public std::enable_shared_from_this<peer_link> {
public:
  peer_link(std::shared_ptr<net::channel> c, link_parts parts);

  // Any thread may call these:

  const net::peer_info& peer() const noexcept { return channel_->peer(); }
  bool reachable() const noexcept { return reachable_ && channel_->is_open(); }
  /// Sends the hello.
  void open();
  /// Takes a message of the peer. After an error the channel must be closed.
  /// Errors:  `protocol_error`.
  [[nodiscard]] status take(std::span<const std::byte> body);
  void start(std::shared_ptr<running_transfer> t);
  /// Ends everything without blocking. When the last transfer was completed, no device touches its
  /// memory. `then` runs on the completion thread.
  void close(const status& why, std::function<void()> then);
  verbs_stats stats() const;

  // Only the completion thread calls these:

  void close_now(const status& why);
  bool serve() override;
  void arm() override;
  bool tick(time_point now) override;
  void port_lost(const device& d) override;

  void send_connect(const connect& m) override { send(message_kind::connect, m); }
  void send_ready(const ready& m) override { send(message_kind::ready, m); }
  void send_lost(const lost& m) override { send(message_kind::lost, m); }
  void rail_changed(rail& r) override;
  void request_done(const std::shared_ptr<running_transfer>& t, const request& r) override;
  void request_undone(
    const std::shared_ptr<running_transfer>& t, request r, undone how, const status& why) override;

private:
  using transfer_ptr = std::shared_ptr<running_transfer>;
  /// The region and its key: a handle with another key is another region.
  struct region_name {
    std::uint64_t region = 0;
    region_key key;
    direction dir = direction::read;
    friend auto operator<=>(const region_name&, const region_name&) = default;
  };
  struct known_region {
    std::shared_ptr<const key_set> keys; // null until the first answer
    std::uint64_t asked = 0;             // the number of the `ask` in flight; 0: none
    std::uint64_t used_at = 0;
  };
  struct question;
  using question_ptr = std::shared_ptr<const question>;
  struct bind_round;

  template <class Message>
  status try_send(message_kind kind, const Message& m);
  template <class Message>
  void send(message_kind kind, const Message& m);
  template <class Message>
  status deliver(wire_reader& reader, std::uint64_t size_bytes, void (peer_link::*f)(Message));
  void on_hello(hello m);
  void on_connect(connect m);
  void on_ready(ready m);
  void on_lost(lost m);
  void on_granted(granted m);
  void on_withdrawn(withdrawn m);
  // The owner's side:
  status on_ask(const ask& m);
  status admit(const ask& m);
  void prepare(question_ptr q);
  void bind(const question_ptr& q, grant_book::prepared p);
  void bound(bind_round& round);
  bool covers_live_pairs(const granted& m) const;
  void answer(const question& q, result<granted> m);
  void refuse(std::uint64_t number, const status& why);
  std::vector<live_pair> live_pairs() const;

  // The submitter's side:
  static region_name name_of(const running_transfer& t);
  void begin(const transfer_ptr& t);
  void obtain_keys(const transfer_ptr& t);
  void forget_region(const region_name& name);
  void give_up_question(const region_name& name);
  void give_keys(const region_name& name, const result<std::shared_ptr<const key_set>>& keys);
  void trim_known();
  bool pump();
  bool fill_rails();
  transfer_ptr next_for(const rail& r);
  bool post_next(rail& r, const transfer_ptr& t, const key_set::pair_keys& keys);
  bool may_use(const rail& r, const running_transfer& t) const;
  const rail* home_of(const running_transfer& t) const;
  void choose_home(running_transfer& t);
  void look_at_stuck(const transfer_ptr& t);
  void fail_transfer(const transfer_ptr& t, const status& why);
  void note_end(const transfer_ptr& t);
  status why_no_rail() const;
  void reap();
  void finish(const transfer_ptr& t);
  void note_reachable();
  void balance();
  rail* find_rail(std::uint32_t pair);

  const std::shared_ptr<net::channel> channel_;
  const link_parts parts_;
  const std::shared_ptr<grant_book> book_;
  std::atomic<bool> reachable_ = false;
  std::atomic<std::uint64_t> backlog_bytes_ = 0; // of messages that wait for the completion thread
  mutable std::mutex mutex_;                     // guards the next three, which other threads read
  std::set<std::uint64_t> answering_;            // regions that the peer has asked for
  std::vector<live_pair> live_;
  std::vector<verbs_rail_stats> rail_stats_;

  hello ours_;
  std::size_t pieces_max_ = 1; // per request
  bool closed_ = false;
  bool greeted_ = false;
  bool dirty_ = false;     // a transfer may have ended, or may continue
  bool keys_went_ = false; // some transfer may have to ask again
  std::vector<std::unique_ptr<rail>> rails_;
  std::vector<transfer_ptr> transfers_;
  std::vector<transfer_ptr> ended_; // those of `transfers_` that ended
  std::size_t turn_ = 0;
  std::uint32_t homes_ = 0;
  std::map<region_name, known_region> known_;
  std::map<std::uint64_t, region_name> questions_;
  std::uint64_t last_question_ = 0;
  std::uint64_t clock_ = 0;
};

} // namespace millrace::transport::verbs
