// Transfers with the memory of one peer: keys are asked for, requests cut, and rails filled in turn.
// Part of `peer_link`.
#pragma once

#include <millrace/net/channel/channel.hpp>
#include <millrace/transport/verbs/link_parts.hpp>
#include <millrace/transport/verbs/rail_set.hpp>
#include <millrace/transport/verbs/region_keys.hpp>

#include <memory>
#include <vector>

namespace millrace::transport::verbs {

/// Threads: the completion thread, unless it says otherwise.
class asking_side {
public:
  asking_side(std::shared_ptr<net::channel> c, const link_parts& parts, const rail_set& rails);

  /// Callbacks keep `link`, of which this is a part. Before anything else.
  void belong_to(std::weak_ptr<void> link) { link_ = std::move(link); }

  /// Any thread.
  void start(std::shared_ptr<running_transfer> t);
  void close(const status& why);

  // Messages of the peer.
  void on_granted(const granted& m);
  void on_withdrawn(const withdrawn& m);

  // What the rails tell.
  void request_done(const std::shared_ptr<running_transfer>& t);
  void request_undone(
    const std::shared_ptr<running_transfer>& t, request r, rail_owner::undone how,
    const status& why);
  /// A rail came or went: the keys of regions miss it, or are for one that is gone.
  void rails_changed();

  bool has_transfers() const noexcept { return !transfers_.empty(); }
  /// Whether a transfer may have ended, or may go on, since it was asked last.
  bool take_dirty() noexcept { return std::exchange(dirty_, false); }
  /// Posts what the rails have room for, and ends what is done. True if anything was posted.
  bool pump();
  /// Fails transfers that have not moved for too long.
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

  // Keys.
  void obtain_keys(const transfer_ptr& t);
  void give_up_question(const region_name& name);
  void give_keys(const region_name& name, const result<region_keys::keys_ptr>& keys);

  // Filling the rails: asking_side_posting.cpp.
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
  std::size_t pieces_max_; // of a request
  bool closed_ = false;
  bool dirty_ = false;
  bool keys_went_ = false; // some transfer may have to ask anew
  std::vector<transfer_ptr> transfers_;
  std::vector<transfer_ptr> ended_; // of them
  std::size_t turn_ = 0;
  std::uint32_t homes_ = 0;
  region_keys keys_;
};

} // namespace millrace::transport::verbs
