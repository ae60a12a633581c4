// Serves one peer that moves bytes with our device memory: lends chunks, fills and empties them.
// Made by the staged driver for each peer.
#pragma once

#include <millrace/core/clock.hpp>
#include <millrace/net/channel/channel.hpp>
#include <millrace/transport/copy/copy_job.hpp>
#include <millrace/transport/staged/chunk_pool.hpp>
#include <millrace/transport/staged/messages.hpp>

#include <map>
#include <memory>
#include <mutex>

namespace millrace::transport::staged {

/// Fills and empties chunks for one peer. Each copy between the region's memory and a chunk holds a
/// lease, so withdrawing the region waits for one copy and never for a peer. The peer itself
/// touches chunks only.
/// Threads: any. Made by `make_shared` only.
class lending_side : public std::enable_shared_from_this<lending_side> {
public:
  lending_side(
    std::shared_ptr<net::channel> c, std::shared_ptr<chunk_pool> pool,
    const staged_options& options)
    : channel_(std::move(c)), pool_(std::move(pool)), options_(options),
      who_(net::party_of(channel_->peer())), borrower_(pool_->new_borrower()) {
    who_.privileged = false; // chunks are not kept for anyone
  }

  /// Errors:  `protocol_error` for a message that breaks the protocol.
  [[nodiscard]] status on_stage(stage m);
  [[nodiscard]] status on_commit(const commit& m);
  void on_release(const release& m);
  /// Takes back chunks that were kept too long, and answers `busy` to requests that waited too
  /// long.
  void expire(time_point now);
  void close();

  // Requests that wait or have a chunk.
  std::size_t requests() const;

private:
  enum class phase { waiting, filling, lent, emptying };
  struct loan {
    std::shared_ptr<const stage> asked;
    region_ref memory;
    std::uint64_t ticket = 0; // our own number: a peer may use its numbers again
    phase now = phase::waiting;
    time_point since;
    chunk* what = nullptr;
    bool given_up = false; // by the peer, while the chunk is filled
  };

  void fill(std::uint64_t number, std::uint64_t ticket, result<chunk*> given);
  void empty(std::uint64_t number);
  result<bulk_handle> filled(const loan& l);
  status copy(const loan& l, device_way way);
  void answer(std::uint64_t number, const result<bulk_handle>& outcome);
  void tell_committed(std::uint64_t number, const status& outcome);

  const std::shared_ptr<net::channel> channel_;
  const std::shared_ptr<chunk_pool> pool_;
  const staged_options options_;
  party who_;
  const std::uint64_t borrower_;
  mutable std::mutex mutex_;
  bool closed_ = false;
  std::uint64_t tickets_ = 0;
  std::map<std::uint64_t, loan> loans_;
};

} // namespace millrace::transport::staged
