// Staging memory, shared by the operations of processes. Used for windows and for snapshots.
#pragma once

#include <millrace/actors/staging/staging_shares.hpp>
#include <millrace/core/fair_shares.hpp>
#include <millrace/core/memory.hpp>
#include <millrace/core/node_status.hpp>
#include <millrace/core/status.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace millrace::actors {

class staging_lender;

/// What one operation needs staging memory for. Threads: one at a time.
class staging_need {
public:
  staging_need() = default;
  staging_need(const staging_need&) = delete;
  staging_need& operator=(const staging_need&) = delete;

  /// Withdraws the requests that still wait, which are not answered. Called when the operation
  /// ends; otherwise they would keep others waiting, and the operation's context.
  void end();

private:
  friend staging_lender;

  std::vector<std::shared_ptr<staging_lender>> waits_at_;
};

/// Who asks for staging memory, for what, and how long.
struct staging_claim {
  party who = {};
  staging_use use = staging_use::save;
  /// The request may fail from then on, whatever becomes of the operation.
  time_point deadline = time_point::max();
  staging_need* need = nullptr; // lives while the request waits, or has ended; null: none
};

/// One memory source and its lenders, which share it by budgets that the staging manager grants.
/// Each process gets its share of the bytes through all lenders together, as `fair_shares` says.
///
/// *Problem*: a request must cost neither a message nor a lock that is held across work. So each
/// lender has a budget, and the manager hears only of budgets that are short. One lock guards the
/// counts of all lenders of a memory, and it is held while they change, never while memory is used.
/// Threads: any. Made by `make_shared` only.
class staging_memory : public std::enable_shared_from_this<staging_memory> {
public:
  explicit staging_memory(std::shared_ptr<memory_source> memory);
  ~staging_memory();
  staging_memory(const staging_memory&) = delete;
  staging_memory& operator=(const staging_memory&) = delete;

  /// `call` asks the manager to look. It is called with no lock held. Null: there is no manager.
  /// Each lender calls at most once for each block or turn that it lends, and when it is short
  /// while it has nothing lent.
  void managed_by(std::function<void()> call, const staging_rules& rules);

  /// Moves budget between the lenders, drops requests whose deadline is over, and lends what is
  /// possible then. Called by the manager. Returns as `share_out`.
  std::chrono::milliseconds share_out(time_point now);

  /// Answers every request that waits, since no budget will come any more, and from then on those
  /// that would wait. Lenders go on with the budgets that they have. Called when a node has ended
  /// its actors, or does not start the manager anew.
  void refuse_all(const status& why);

  std::uint64_t capacity_bytes() const noexcept { return memory_->capacity_bytes(); }
  std::uint64_t used_bytes() const noexcept { return memory_->used_bytes(); }
  std::vector<staging_status> report() const;

private:
  friend staging_lender;

  // The owner of a lent block. Its end takes the lock, so none ends while the lock is held.
  struct lease {
    explicit lease(party p, std::uint64_t bytes) : who(std::move(p)), size_bytes(bytes) {}
    ~lease();
    lease(const lease&) = delete;
    lease& operator=(const lease&) = delete;

    const party who;
    const std::uint64_t size_bytes;
    std::shared_ptr<staging_lender> from; // null: nothing is lent yet
    std::shared_ptr<void> block;
  };

  struct request {
    std::shared_ptr<lease> owner; // made beforehand, since nothing throws once a block is lent
    time_point deadline;
    staging_need* need;
    completion<memory_block> granted;
    result<memory_block> outcome = fail(errc::no_space, "no memory"); // until it is lent some
    time_point asked_at{};
    std::uint64_t round = 0; // in which it was asked
  };
  // One or several. A request goes from list to list, which neither throws nor allocates.
  using requests = std::list<request>;

  // Lends to those that wait, in turns, and then calls them.
  void serve(std::unique_lock<std::mutex> lock, requests served = {});
  // Moves the requests that wait, and for which `is` holds, to `served`; `why` makes their outcome.
  template <class Is, class Why>
  void refuse(requests& served, Is is, Why why);
  static void answer(request& r);
  bool serve_next(requests& served, bool& in_pieces);
  // Returns false if the request must wait.
  bool lend(staging_lender& to, staging_use use, request& r, bool& in_pieces);
  void end_turn(staging_lender& of);
  void give_back(const lease& back);
  // Returns true if the manager must hear of this lender.
  bool must_call(staging_lender& of);
  void unlock(std::unique_lock<std::mutex>& lock, bool calls) const; // calls the manager

  const std::shared_ptr<memory_source> memory_;
  mutable std::mutex mutex_;
  fair_shares shares_;
  std::list<staging_lender*> lenders_;                // the one whose turn it is first
  std::uint64_t waiting_ = 0;                         // the requests that wait in all of them
  std::shared_ptr<const std::function<void()>> call_; // null: there is no manager
  status refused_;                                    // why no request waits any more
  staging_rules rules_;
  std::uint64_t turn_ = 0;
  std::uint64_t round_ = 0;
};

/// Returns how many memories there are in this process, each of which lives as long as a lender or
/// a lent block of it; for leak tests.
std::size_t staging_memories() noexcept;

/// Lends blocks of a memory to the operations of one provider. A process that has its share waits
/// until memory comes back, and the processes take turns.
///
/// *Problem*: many operations share little memory, and each needs blocks again and again. None may
/// starve, not even when the trainer of another one is stopped. An operation that kept some memory
/// while it waited for more could wait for itself, or for another one that does the same.
///
/// *Rule*: an operation asks for one block at a time for each part of its work, and finishes this
/// part without waiting for another block. Waiting blocks no thread.
/// Threads: any. Made by `make_shared` only.
class staging_lender : public std::enable_shared_from_this<staging_lender> {
public:
  /// The only lender of a memory: its budget is all of it, and needs no manager.
  explicit staging_lender(std::shared_ptr<memory_source> memory);
  /// `quota_bytes`: the most that it may hold. It holds nothing before the manager has granted it.
  staging_lender(
    std::shared_ptr<staging_memory> memory, std::string name, std::uint64_t quota_bytes);
  ~staging_lender();

  /// Lends a block on a border of 4096 bytes, now or when memory has come back. Dropping the last
  /// copy of its `owner` returns it; if the request was given up, the next one gets the block.
  /// `granted` runs with no lock held, unless the claim's need has ended before.
  /// Errors: `no_space` for more than the lender may ever hold; `deadline_exceeded`.
  void ask(staging_claim claim, std::uint64_t size_bytes, completion<memory_block> granted);

private:
  friend staging_memory;
  friend staging_need;

  std::uint64_t waiting() const noexcept;
  void push(staging_use use, staging_memory::request r);
  // Removes the requests that wait and for which `is` holds.
  template <class Is>
  staging_memory::requests remove(Is is);
  void withdraw(const staging_need& need);

  const std::shared_ptr<staging_memory> memory_;
  // Guarded by the memory's lock.
  staging_account account_;
  fair_shares shares_; // the shares of the quota
  std::array<fair_queue<staging_memory::requests>, staging_uses> waiting_;
  std::list<staging_lender*>::iterator at_; // its place among the lenders
  std::uint64_t waits_ = 0, waited_us_ = 0, calls_ = 0;
  std::uint64_t called_at_bytes_ = 0, called_at_count_ = 0; // the lent counts at the last call
  bool called_short_ = false, called_free_ = false;         // the manager was told that it is so
};

} // namespace millrace::actors
