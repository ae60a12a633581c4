// Opens regions of this process to one peer, by keys that hold over the link's queue pairs.
// Part of `peer_link`.
#pragma once

#include <millrace/net/channel/channel.hpp>
#include <millrace/transport/verbs/link_parts.hpp>
#include <millrace/transport/verbs/rail_set.hpp>

#include <memory>
#include <mutex>
#include <set>
#include <vector>

namespace millrace::transport::verbs {

/// Threads: the completion thread, unless it says otherwise.
class lending_side {
public:
  lending_side(std::shared_ptr<net::channel> c, const link_parts& parts, const rail_set& rails);

  /// Callbacks keep `link`, of which this is a part. Before anything else.
  void belong_to(std::weak_ptr<void> link) { link_ = std::move(link); }

  /// Any thread: checks the right to the region at once and prepares the answer on a mover.
  /// Errors: `protocol_error`.
  [[nodiscard]] status on_ask(const ask& m);
  /// The queue pairs over which keys can hold have changed.
  void set_live_pairs(std::vector<live_pair> live);

  /// Any thread: opens nothing more. Does not block.
  void shut() { book_->shut(); }
  /// Any thread, after `shut`: takes all keys back. Blocks while memory is being registered.
  void clear() { book_->clear(); }
  void close();

  // Any thread.
  std::size_t grants() const { return book_->size(); }
  std::uint64_t windows() const noexcept { return book_->windows(); }

private:
  // What the peer asked, until it is answered.
  struct question {
    ask m;
    region_ref memory;
  };
  using question_ptr = std::shared_ptr<const question>;
  // The windows of one answer on their way to being bound.
  struct bind_round {
    question_ptr of;
    std::shared_ptr<grant> g;
    std::vector<pair_grant> pairs;
    std::vector<bool> failed; // of the pairs
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
  mutable std::mutex mutex_;          // guards what other threads look at:
  std::set<std::uint64_t> answering_; // regions that the peer has asked for
  std::vector<live_pair> live_;
};

} // namespace millrace::transport::verbs
