// One pair of ports between two peers: connects it, watches it, and connects it again.
// Owned by a link's `rail_set`.
#pragma once

#include <millrace/core/clock.hpp>
#include <millrace/transport/verbs/cm_connection.hpp>
#include <millrace/transport/verbs/completion_thread.hpp>
#include <millrace/transport/verbs/queue_pair.hpp>
#include <millrace/transport/verbs/setup_pool.hpp>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace millrace::transport::verbs {

struct running_transfer;
class rail;

/// Gets the reports of a rail.
class rail_owner {
public:
  virtual ~rail_owner() = default;
  virtual void send_connect(const connect& m) = 0;
  virtual void send_ready(const ready& m) = 0;
  virtual void send_lost(const lost& m) = 0;
  /// Called when the rail came up, or when it went down and its requests have ended.
  virtual void rail_changed(rail& r) = 0;
  virtual void request_done(const std::shared_ptr<running_transfer>& t, const request& r) = 0;
  /// Why a request ended without being done. `refused`: the peer's device denied access. `blamed`:
  /// this request may have broken the rail. `local_error`: it ends the transfer.
  enum class undone { untouched, blamed, refused, local_error };
  virtual void request_undone(
    const std::shared_ptr<running_transfer>& t, request r, undone how, const status& why) = 0;
};

/// Keeps one connection. Both sides count generations; the higher one wins, and replaces the
/// earlier queue pair.
///
///   down → opening → offered (ours sent) → joining (theirs known) → joined (ours can receive)
///     → probing → up
///
/// A side that loses a joined queue pair tells the other side. Any failure on the way leads to
/// `down`, from where the rail tries again every `probe_interval_ms`. After `up` it tries again at
/// once.
/// Threads: the completion thread.
class rail {
public:
  struct parts {
    std::shared_ptr<device> port;
    std::uint32_t device_index = 0;
    std::uint32_t pair = 0;
    std::string peer; // its name, for errors
    verbs_options options;
    std::shared_ptr<completion_thread> thread;
    std::shared_ptr<setup_pool> setup;
    std::shared_ptr<cm_hub> cm; // null: connected over the channel
    bool passive = false;       // with rdma_cm: listens
    std::weak_ptr<void> alive;  // expires with the owner
  };
  rail(rail_owner& owner, parts p) : owner_(owner), p_(std::move(p)) {}

  void begin() { attempt(generation_ + 1); }
  void on_connect(const connect& m);
  void on_ready(const ready& m);
  void on_lost(const lost& m);
  /// Takes the rail down. Its requests in flight go back to the owner.
  void lose(const status& why);
  void close();

  std::uint32_t pair() const noexcept { return p_.pair; }
  std::uint32_t generation() const noexcept { return generation_; }
  std::uint32_t device_index() const noexcept { return p_.device_index; }
  std::uint64_t node_mask() const noexcept { return p_.port->node_mask(); }
  const device& port() const noexcept { return *p_.port; }
  bool up() const noexcept { return state_ == state::up; }
  /// Returns true if windows can be bound over it.
  bool live() const noexcept { return q_ != nullptr; }
  /// Returns true if the rail is up, or was up just now and may be again in a moment.
  bool hopeful() const noexcept { return up() || (grace_ && state_ != state::down); }
  const status& last_error() const noexcept { return last_error_; }
  verbs_rail_stats stats() const;

  /// Returns whether a request of a transfer may be posted now.
  bool has_room() const noexcept;
  bool has_bind_room() const noexcept { return posted_.size() + 1 < p_.options.queue_depth; }
  std::uint64_t message_bytes_max() const noexcept { return q_->message_bytes_max(); }
  void set_depth(std::uint32_t depth) noexcept { depth_ = depth; }
  std::uint64_t rate() const noexcept { return rate_; }

  /// Posts a request. `last`: nothing of this transfer follows. Returns false if the rail broke;
  /// the owner has then got the request back.
  bool post(
    std::shared_ptr<running_transfer> t, direction dir, request r, std::uint64_t address,
    std::uint32_t key, const local_keys& keys, bool last);
  /// Binds a window when there is room. `then` runs once.
  void bind(std::shared_ptr<remote_key> key, std::function<void(const status&)> then);
  /// Called after a round of posting: asks for a completion of the requests posted without a
  /// signal.
  void flush();

  bool serve();
  void arm() {
    if (q_)
      q_->arm();
  }
  bool tick(time_point now);

private:
  enum class state { down, opening, offered, joining, joined, probing, up };
  struct posted {
    std::uint64_t id = 0;
    std::shared_ptr<running_transfer> work; // a request of this transfer, or a bind if null
    std::function<void(const status&)> then;
    request what;
  };
  struct waiting_bind {
    std::shared_ptr<remote_key> key;
    std::function<void(const status&)> then;
  };

  // A queue pair, and the object that connects it, which is null if the channel alone does.
  struct unjoined {
    std::shared_ptr<queue_pair> q;
    std::shared_ptr<cm_connection> cm;
  };

  void attempt(std::uint32_t generation);
  static result<unjoined> make(const parts& p, const void* lane, setup_pool::turn when);
  void opened(result<unjoined> made);
  void join();
  void join_by_cm();
  void joined(std::uint32_t generation, std::shared_ptr<queue_pair> q, const status& outcome);
  void probe();
  /// Why a rail goes down: the peer begins again, which is no failure; it failed on this side; it
  /// failed on the other side, as the peer has said.
  enum class ending { anew, here, there };
  void take_down(const status& why, rail_owner::undone first, ending how);
  void complete(const ibv_wc& wc);
  bool post_binds();
  std::uint64_t& port_bytes() const { return p_.thread->inflight_bytes(p_.device_index); }
  bool wants_signal(bool last, std::uint64_t bytes) const noexcept;
  void note_posted(posted p, bool signalled);
  void note_rate(std::uint64_t bytes);
  status error_of(const ibv_wc& wc) const;
  /// A rail that failed before waits behind the others.
  setup_pool::turn turn() const noexcept {
    return failed_ ? setup_pool::turn::again : setup_pool::turn::first;
  }
  template <class F>
  void set_up(F f);
  void start_deadline();
  void drop_connection();

  rail_owner& owner_;
  const parts p_;
  state state_ = state::down;
  std::uint32_t generation_ = 0;
  bool begun_ = false;
  bool closed_ = false;
  bool grace_ = false;
  bool failed_ = false; // since it was last up
  bool open_pending_ = false;
  bool peer_ready_ = false;
  std::optional<connect> theirs_;
  std::shared_ptr<queue_pair> making_; // not joined yet
  std::shared_ptr<queue_pair> q_;
  std::shared_ptr<cm_connection> cm_; // joins, or has joined, the queue pair
  time_point deadline_{};
  time_point retry_at_{};
  // When the last completion came, or the first request after a pause went out.
  time_point moved_at_{};

  std::deque<posted> posted_;
  std::deque<waiting_bind> binds_;
  std::uint64_t next_id_ = 1;
  std::uint32_t unsignalled_ = 0;
  std::uint64_t unsignalled_bytes_ = 0;
  std::uint64_t inflight_bytes_ = 0;
  std::uint32_t depth_ = ~0u;

  std::uint64_t rate_ = 0;
  std::uint64_t rate_bytes_ = 0;
  time_point rate_since_{};
  std::uint64_t bytes_ = 0, requests_ = 0, completions_ = 0, retried_ = 0, failures_ = 0;
  status last_error_;
};

} // namespace millrace::transport::verbs
