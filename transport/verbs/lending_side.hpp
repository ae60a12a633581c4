// Makes regions of this process reachable for one peer, with keys that are valid over the link's
// queue pairs. Part of `peer_link`.
#pragma once

#include <millrace/net/channel/channel.hpp>
#include <millrace/transport/verbs/link_parts.hpp>
#include <millrace/transport/verbs/rail_set.hpp>

#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace millrace::transport::verbs {

/// Answers the peer's questions for keys.
/// Threads: the completion thread, except where stated.
class lending_side {
public:
  lending_side(std::shared_ptr<net::channel> c, const link_parts& parts, const rail_set& rails);

  /// Names the link of which this is a part. Callbacks keep it alive. Call it before anything else.
  void belong_to(std::weak_ptr<void> link) { link_ = std::move(link); }

  /// Checks at once that the peer may reach the region, and prepares the answer on a mover.
  /// Threads: any.
  /// Errors:  `protocol_error`.
  [[nodiscard]] status on_ask(const ask& m);
  /// Sets the queue pairs over which keys can be bound now.
  void set_live_pairs(std::vector<live_pair> live);

  /// Makes no more grants. Does not block. Threads: any.
  void shut() { book_->shut(); }
  /// Revokes all keys. Call it after `shut`. Blocks while memory is being registered. Threads: any.
  void clear() { book_->clear(); }
  void close();

  // Threads: any.
  std::size_t grants() const { return book_->size(); }
  std::uint64_t windows() const noexcept { return book_->windows(); }

private:
  // A question of the peer, until it is answered.
  struct question {
    ask m;
    region_ref memory;
  };
  using question_ptr = std::shared_ptr<const question>;
  // The windows of one answer while they are being bound. A pair that fails is left out, and the
  // others go into the answer, so this is no `gathering`, which has one error for all.
  struct bind_round {
    question_ptr of;
    std::shared_ptr<grant> g;
    std::vector<pair_grant> pairs;
    std::vector<bool> failed; // one flag per pair
    std::size_t missing = 1;
  };

  std::shared_ptr<lending_side> self() { return {link_.lock(), this}; }
  status admit(const ask& m);
  void prepare(question_ptr q);
  void bind(const question_ptr& q, grant_book::prepared p);
  void bound(bind_round& round);
  bool covers_live_pairs(const granted& m) const;
  void answer(const question& q, result<granted> m);
  void refuse(std::uint64_t number, const status& why);
  std::vector<live_pair> live_pairs() const;

  const std::shared_ptr<net::channel> channel_;
  const link_parts& parts_;
  const rail_set& rails_;
  const std::shared_ptr<grant_book> book_;
  std::weak_ptr<void> link_;
  bool closed_ = false;
  mutable std::mutex mutex_;          // guards what other threads look at
  std::set<std::uint64_t> answering_; // regions that the peer has asked for
  std::vector<live_pair> live_;
};

} // namespace millrace::transport::verbs
