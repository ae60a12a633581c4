// Transfers with the memory of one peer: asks for keys, cuts requests, and fills the rails in turn.
// Part of `peer_link`.
#pragma once

#include <millrace/net/channel/channel.hpp>
#include <millrace/transport/verbs/link_parts.hpp>
#include <millrace/transport/verbs/rail_set.hpp>
#include <millrace/transport/verbs/region_keys.hpp>

#include <memory>
#include <vector>

namespace millrace::transport::verbs {

/// Runs the transfers with one peer's memory.
/// Threads: the completion thread, except where stated.
class asking_side {
public:
  asking_side(std::shared_ptr<net::channel> c, const link_parts& parts, const rail_set& rails);

  /// Names the link of which this is a part. Callbacks keep it alive. Call it before anything else.
  void belong_to(std::weak_ptr<void> link) { link_ = std::move(link); }

  /// Starts a transfer. Threads: any.
  void start(std::shared_ptr<running_transfer> t);
  void close(const status& why);

  // Messages of the peer:
  void on_granted(const granted& m);
  void on_withdrawn(const withdrawn& m);

  // Reports of the rails:
  void request_done(const std::shared_ptr<running_transfer>& t);
  void request_undone(
    const std::shared_ptr<running_transfer>& t, request r, rail_owner::undone how,
    const status& why);
  /// Says that a rail came or went. The known keys lack the new rail, or belong to one that is
  /// gone.
  void rails_changed();

  bool has_transfers() const noexcept { return !transfers_.empty(); }
  /// Returns true if a transfer may have ended, or may go on, since the last call.
  bool take_dirty() noexcept { return std::exchange(dirty_, false); }
  /// Posts the requests for which the rails have room, and ends the transfers that are done.
  /// Returns true if a request was posted.
  bool pump();
  /// Fails transfers that have made no progress for too long.
  void tick(time_point now);

private:
  using transfer_ptr = std::shared_ptr<running_transfer>;

  std::shared_ptr<asking_side> self() { return {link_.lock(), this}; }
  const std::string& peer() const noexcept { return channel_->peer().name; }
  void begin(const transfer_ptr& t);
  void end_if_stuck(const transfer_ptr& t);
  void fail_transfer(const transfer_ptr& t, const status& why);
  void note_end(const transfer_ptr& t);
  void reap();
  void finish(const transfer_ptr& t);

  // Keys:
  void obtain_keys(const transfer_ptr& t);
  void give_up_question(const region_name& name);
  void give_keys(const region_name& name, const result<region_keys::keys_ptr>& keys);

  // Filling the rails, see asking_side_posting.cpp:
  bool fill_rails();
  transfer_ptr next_for(const rail& r);
  bool post_next(rail& r, const transfer_ptr& t, const key_set::pair_keys& keys);
  bool may_use(const rail& r, const running_transfer& t) const;
  const rail* home_of(const running_transfer& t) const;
  void choose_home(running_transfer& t);

  const std::shared_ptr<net::channel> channel_;
  const link_parts& parts_;
  const rail_set& rails_;
  std::weak_ptr<void> link_;
  std::size_t runs_max_; // the bound of one request
  bool closed_ = false;
  bool dirty_ = false;
  bool keys_went_ = false; // some transfers may have to ask for keys again
  std::vector<transfer_ptr> transfers_;
  std::vector<transfer_ptr> ended_; // part of `transfers_`
  std::size_t turn_ = 0;
  std::uint32_t homes_ = 0;
  region_keys keys_;
};

} // namespace millrace::transport::verbs
