// One pair of ports between two peers: connected, watched, and connected again. Owned by `peer_link`.
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

/// What a rail tells the link it belongs to.
class rail_owner {
public:
  virtual ~rail_owner() = default;
  virtual void send_connect(const connect& m) = 0;
  virtual void send_ready(const ready& m) = 0;
  virtual void send_lost(const lost& m) = 0;
  /// It came up, or what was under way on it has ended with it.
  virtual void rail_changed(rail& r) = 0;
  virtual void request_done(const std::shared_ptr<running_transfer>& t, const request& r) = 0;
  /// Not done, and not under way any more. `refused`: the peer's device did not let it in; `blamed`: it may have
  /// been this one that broke the rail; a local error ends the transfer.
  enum class undone { untouched, blamed, refused, local_error };
  virtual void request_undone(
    const std::shared_ptr<running_transfer>& t, request r, undone how, const status& why) = 0;
};

/// Both sides count generations; the higher one wins, and replaces the queue pair that was.
///
///   down → opening → offered (ours sent) → joining (theirs known) → joined (ours can receive) → probing → up
///
/// Whoever loses one that was joined tells the other. Whatever fails on the way leads to `down`; from there it is tried
/// every `probe_interval_ms`. From `up` one more try follows at once.
/// Threads: the completion thread.
class rail {
public:
  struct parts {
    std::shared_ptr<device> port;
    std::uint32_t device_index = 0;
    std::uint32_t pair = 0;
    std::string peer; // name, for errors
    verbs_options options;
    std::shared_ptr<completion_thread> thread;
    std::shared_ptr<setup_pool> setup;
    std::shared_ptr<cm_hub> cm; // null: connected over the channel
    bool passive = false;       // by rdma_cm: listens
    std::weak_ptr<void> alive;  // of the owner
  };
  rail(rail_owner& owner, parts p) : owner_(owner), p_(std::move(p)) {}

  void begin() { attempt(generation_ + 1); }
  void on_connect(const connect& m);
  void on_ready(const ready& m);
  void on_lost(const lost& m);
  /// It broke; what is under way goes back to the owner.
  void lose(const status& why);
  void close();

  std::uint32_t pair() const noexcept { return p_.pair; }
  std::uint32_t generation() const noexcept { return generation_; }
  std::uint32_t device_index() const noexcept { return p_.device_index; }
  std::uint64_t node_mask() const noexcept { return p_.port->node_mask(); }
  const device& port() const noexcept { return *p_.port; }
  bool up() const noexcept { return state_ == state::up; }
  /// Windows can be bound over it.
  bool live() const noexcept { return q_ != nullptr; }
  /// It is up, or was just now and may be again in a moment.
  bool hopeful() const noexcept { return up() || (grace_ && state_ != state::down); }
  const status& last_error() const noexcept { return last_error_; }
  verbs_rail_stats stats() const;

  /// Whether a request of a transfer may go out now.
  bool has_room() const noexcept;
  bool has_bind_room() const noexcept { return posted_.size() + 1 < p_.options.queue_depth; }
  std::uint64_t message_bytes_max() const noexcept { return q_->message_bytes_max(); }
  void set_depth(std::uint32_t depth) noexcept { depth_ = depth; }
  std::uint64_t rate() const noexcept { return rate_; }

  /// `last`: nothing of this transfer follows. False if the rail broke: the owner has got the request back.
  bool post(
    std::shared_ptr<running_transfer> t, direction dir, request r, std::uint64_t address,
    std::uint32_t key, const local_keys& keys, bool last);
  /// Binds when there is room. `then` runs once.
  void bind(std::shared_ptr<remote_key> key, std::function<void(const status&)> then);
  /// After a round of posting: what was posted without a signal gets one.
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
    std::shared_ptr<running_transfer> work; // or
    std::function<void(const status&)> then;
    request what;
  };
  struct waiting_bind {
    std::shared_ptr<remote_key> key;
    std::function<void(const status&)> then;
  };

  // A queue pair, and what will connect it if that is not the channel alone.
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
  /// The peer begins anew, which is no failure; it failed here; it failed there, so the peer has said.
  enum class ending { anew, here, there };
  void take_down(const status& why, rail_owner::undone first, ending how);
  void complete(const ibv_wc& wc);
  bool post_binds();
  std::uint64_t& port_bytes() const { return p_.thread->inflight_bytes(p_.device_index); }
  bool wants_signal(bool last, std::uint64_t bytes) const noexcept;
  void note_posted(posted p, bool signalled);
  void note_rate(std::uint64_t bytes);
  status error_of(const ibv_wc& wc) const;
  /// What failed before goes last.
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
  bool failed_ = false; // since it was up, if ever
  bool open_pending_ = false;
  bool peer_ready_ = false;
  std::optional<connect> theirs_;
  std::shared_ptr<queue_pair> making_; // not joined yet
  std::shared_ptr<queue_pair> q_;
  std::shared_ptr<cm_connection> cm_; // of the one that is joined or on its way to it
  time_point deadline_{};
  time_point retry_at_{};
  time_point moved_at_{}; // last completion, or when something went out after a rest

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
