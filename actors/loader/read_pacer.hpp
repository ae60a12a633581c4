// Decides when reads of a batch are asked for, so that the answers of many servers do not overrun
// the reader's network. Pure: told the time, knows no network. Used by clients.
#pragma once

#include <millrace/actors/loader/read_options.hpp>
#include <millrace/core/clock.hpp>
#include <millrace/core/ids.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>

namespace millrace::actors {

/// Requests that go out together.
struct read_stage {
  std::uint64_t number = 0;
  std::size_t requests = 0; // the first ones of those that wait
  std::uint64_t bytes = 0;
};

/// Limits the bytes in flight to bandwidth × latency, and asks for them in stages: while the bytes
/// of one stage arrive, those of the next ones are on their way.
///
/// The latency is the shortest that a stage has taken lately. Without a configured bandwidth it is
/// the highest rate measured lately, and twice the product may be in flight, since a rate that the
/// limit holds down could not rise otherwise. A stage that takes several times as long
/// as expected has waited in a queue of the network: the limit is halved, and grows again while
/// stages come in time. `inflight_bytes_min` and `inflight_bytes_max` bound it always.
///
/// One server alone sends no faster than its link, and its transport limits what queues up. So
/// while there is only one, and no configured bandwidth, `inflight_bytes_max` is the limit.
///
/// Threads: one at a time.
/// Source:  the loading paper, section 4.4, Algorithm 1. We count bytes, since samples vary in
///          size. Of the printed listing: `req_out` grows by the requests that go out, the last
///          stage ends at the end of the batch, and `i` advances; the limit also holds for the
///          stage that reaches it.
class read_pacer {
public:
  explicit read_pacer(const read_options& options);

  /// Notes that bytes are wanted from a server. It counts for some seconds.
  void wants_from(const peer_id& server, time_point now);
  /// Returns the next stage, and counts it as in flight. `waiting`: the bytes of the requests that
  /// wait, in their order. Nothing is returned until a stage ends if the limit is reached. A
  /// request larger than the limit goes out alone.
  std::optional<read_stage> next(std::span<const std::uint64_t> waiting, time_point now);
  /// Ends a stage. `moved`: all of its bytes have come; what failed is not measured.
  void ended(std::uint64_t stage, time_point now, bool moved);

  std::uint64_t limit_bytes() const noexcept { return limit_bytes_; }
  std::uint64_t stage_bytes() const noexcept;
  std::uint64_t inflight_bytes() const noexcept { return inflight_bytes_; }
  std::size_t inflight_stages() const noexcept { return running_.size(); }
  /// Returns how many stages have gone out.
  std::uint64_t stages() const noexcept { return last_stage_; }

private:
  struct running_stage {
    std::uint64_t bytes = 0;
    std::uint64_t with_bytes = 0; // in flight when it began, its own among them
    time_point begun;
    std::uint64_t arrived_before = 0; // bytes of all stages, when it began
  };
  struct measured {
    double bytes = 0;
    double took_s = 0; // 0: nothing was measured

    double rate() const noexcept { return took_s > 0 ? bytes / took_s : 0; }
  };
  // The best that was measured in the last one or two spans of time.
  class recent {
  public:
    using comparison = bool (*)(const measured&, const measured& than);
    explicit recent(comparison is_better) : is_better_(is_better) {}

    void add(const measured& one, time_point now);
    const measured& best() const noexcept { return best_; }

  private:
    comparison is_better_;
    measured best_, coming_;
    time_point turns_at_{};
  };

  void adapt(std::uint64_t number, const running_stage& stage, double took_s);
  double latency_s() const noexcept;
  bool has_one_server() const noexcept;
  void set_limit();

  const read_options options_;
  std::map<std::uint64_t, running_stage> running_;
  std::uint64_t last_stage_ = 0;
  std::uint64_t inflight_bytes_ = 0;
  std::uint64_t arrived_bytes_ = 0;
  std::uint64_t halved_at_ = 0; // the last stage that had begun when the limit was halved
  std::uint64_t limit_bytes_;
  double share_ = 1; // of the limit, less after stages that waited
  recent shortest_, fastest_;
  std::map<peer_id, time_point> servers_; // when something was last wanted from them
};

} // namespace millrace::actors
