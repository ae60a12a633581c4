// Transfers with one peer's device memory, through chunks of host memory that the peer lends.
// Made by the staged driver for each peer.
#pragma once

#include <millrace/core/clock.hpp>
#include <millrace/net/channel/channel.hpp>
#include <millrace/transport/staged/cutter.hpp>
#include <millrace/transport/staged/messages.hpp>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

namespace millrace::transport::staged {

/// Runs the transfers to one peer. Calls completions and the fabric without the lock. Made by
/// `make_shared` only.
/// Threads: any.
class asking_side : public std::enable_shared_from_this<asking_side> {
public:
  /// Moves bytes with host memory; the fabric.
  using carrier = std::function<void(transfer, completion<transfer_report>)>;

  asking_side(
    std::shared_ptr<net::channel> c, carrier move, std::chrono::milliseconds patience,
    std::size_t transfers_max)
    : channel_(std::move(c)), move_(std::move(move)), patience_(patience),
      transfers_max_(transfers_max) {}

  /// Returns true once the peer has announced its chunks.
  bool ready() const;
  [[nodiscard]] status on_hello(const hello& m);

  /// Starts a transfer. Transfers take turns, chunk by chunk.
  /// Errors:  `busy` while too many transfers run.
  void start(transfer t, completion<transfer_report> done);
  void on_staged(const staged& m);
  void on_committed(const committed& m);
  /// Fails the transfers that the peer has not answered in time.
  void expire(time_point now);
  /// Ends every transfer. A transfer whose bytes are being moved ends when the fabric ends that
  /// move.
  void close(const status& why);

  // Chunks that were asked for or lent.
  std::size_t chunks() const;

private:
  struct running {
    running(transfer t, completion<transfer_report> d, std::uint64_t chunk_bytes)
      : what(std::move(t)), done(std::move(d)), cut(what, chunk_bytes) {
      report.driver = "staged";
      report.written_back = what.write_back;
    }
    transfer what;
    completion<transfer_report> done;
    cutter cut;
    std::vector<std::vector<std::uint64_t>> digests; // one list per chunk
    transfer_report report;
    std::size_t under_way = 0;
    status failure;
  };
  using running_ptr = std::shared_ptr<running>;

  enum class phase { asked, moving, committing };
  struct lent_chunk {
    running_ptr of;
    std::size_t index = 0; // among the chunks of the transfer
    chunk_content what;
    phase now = phase::asked;
    time_point since;
  };

  void pump();
  std::optional<stage> next_request();
  void on_moved(std::uint64_t number, result<transfer_report> outcome);
  void note(const running_ptr& t, std::size_t index, transfer_report report);
  void fail_locked(const running_ptr& t, const status& why);
  void end(std::uint64_t number, const status& outcome);
  void settle(std::uint64_t number, const status& outcome);
  void finish(const running_ptr& t);
  void give_back(std::uint64_t number, bool broken);

  const std::shared_ptr<net::channel> channel_;
  const carrier move_;
  const std::chrono::milliseconds patience_;
  const std::size_t transfers_max_;
  mutable std::mutex mutex_;
  std::optional<hello> bounds_;
  bool closed_ = false;
  std::uint64_t next_ = 1;
  std::deque<running_ptr> turns_; // transfers with bytes left
  std::map<std::uint64_t, lent_chunk> chunks_;
};

} // namespace millrace::transport::staged
