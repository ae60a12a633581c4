// Decides whether a stream has stalled, by looking at it regularly.
// One for each stream, kept by `peer_link`.
#pragma once

#include <cstdint>

namespace millrace::transport::tcp {

/// The state of a stream at one look.
struct stream_progress {
  bool busy = false; // a unit is incomplete, or something waits
  std::uint64_t moved_bytes = 0;
  std::uint64_t oldest_request = 0; // our oldest unanswered request; 0: none
};

/// Decides whether a stream has stalled.
///
/// *Problem*: moving bytes alone do not show that a peer works. A peer could leave one request
/// unanswered for ever, and keep the stream moving by its own requests, or by a byte of the answer
/// now and then.
///
/// Answers come in the order of requests. So the oldest request may wait as long as the stream
/// keeps a minimum pace, but only until as many bytes have moved as may legally come before its
/// answer.
class stall_watch {
public:
  /// `ahead_bytes_max`: the bytes that both sides may have in flight on the stream.
  stall_watch(std::uint32_t looks_max, std::uint64_t ahead_bytes_max) noexcept
    : looks_max_(looks_max), ahead_bytes_max_(ahead_bytes_max) {}

  /// Returns true once the stream has stalled. Time is counted in looks.
  bool look(const stream_progress& now) noexcept {
    if (!now.busy || now.oldest_request != oldest_) {
      oldest_ = now.oldest_request;
      begin_ = now.moved_bytes;
      return went_on(now);
    }
    // If this side waits for no answer, a slow stream harms only the peer.
    auto pace = oldest_ == 0 ? 1 : pace_bytes;
    auto in_time = oldest_ == 0 || now.moved_bytes - begin_ <= ahead_bytes_max_;
    if (now.moved_bytes - mark_ >= pace && in_time)
      return went_on(now);
    return ++still_ >= looks_max_;
  }

  /// The minimum pace, in as many looks as make a stall.
  static constexpr std::uint64_t pace_bytes = 64u << 10;

private:
  bool went_on(const stream_progress& now) noexcept {
    mark_ = now.moved_bytes;
    still_ = 0;
    return false;
  }

  std::uint32_t looks_max_;
  std::uint64_t ahead_bytes_max_;
  std::uint64_t oldest_ = 0;
  std::uint64_t begin_ = 0; // bytes moved when that request became the oldest
  std::uint64_t mark_ = 0;  // bytes moved when the pace was last kept
  std::uint32_t still_ = 0;
};

} // namespace millrace::transport::tcp
