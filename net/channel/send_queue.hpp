// Frames to be sent over one stream: written at once if possible, otherwise queued in order.
// Used by channels, under their send lock.
#pragma once

#include <millrace/core/codec.hpp>
#include <millrace/net/channel/byte_stream.hpp>
#include <millrace/net/channel/channel.hpp>
#include <millrace/net/channel/frame_parser.hpp>

#include <deque>

namespace millrace::net {

class send_queue {
public:
  /// The stream must outlive the queue.
  send_queue(byte_stream& stream, std::uint64_t bytes_max)
    : stream_(stream), bytes_max_(bytes_max) {}

  /// Counts what is queued from now on, except the rest of a small frame that was begun when the
  /// queue was empty.
  void count(buffer_share share) { share_ = std::move(share); }

  /// Writes the frame to the stream if the queue is empty; otherwise copies it into the queue.
  /// `beyond_bound` is for the channel's own small frames.
  /// Errors, after which nothing was sent: `busy` when a bound is reached; `invalid_argument` for
  /// an invalid descriptor; `unsupported` for descriptors on a stream that cannot carry them;
  /// others from the system.
  status push(
    const frame_header& header, std::span<const std::byte> body, std::span<const int> fds,
    bool beyond_bound = false);

  /// Writes until the socket is full or the queue is empty. Errors: the socket is broken.
  status flush();

  /// True if the last `flush` stopped because other processes have not received their descriptors
  /// yet. No event of the socket tells when they have.
  bool needs_retry() const noexcept { return needs_retry_; }

  /// True once the socket refused a write for good.
  bool broken() const noexcept { return broken_; }

  bool empty() const { return frames_.empty() && !stream_.has_unsent(); }
  std::uint64_t size_bytes() const noexcept { return bytes_; }
  void clear() noexcept;

private:
  struct outgoing {
    byte_buffer bytes;
    std::size_t written = 0;
    std::vector<unique_fd> fds;
    std::shared_ptr<void> place = nullptr; // among the bytes that are counted
  };

  status break_off(int error_number);
  status keep(outgoing frame, std::span<const int> fds);
  std::size_t gather(std::span<iovec> parts) const;
  void advance(std::size_t size_bytes);

  byte_stream& stream_;
  std::uint64_t bytes_max_;
  buffer_share share_;
  std::uint64_t bytes_ = 0;
  bool broken_ = false;
  bool needs_retry_ = false;
  std::deque<outgoing> frames_;
};

/// Duplicates descriptors, so that the caller may close its own before they have been sent.
result<std::vector<unique_fd>> duplicate(std::span<const int> fds);

} // namespace millrace::net
