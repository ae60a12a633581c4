// Appends samples to a stream: copies them, gets places for them, writes them there, and says so.
// Internal, behind `stream_producer`; needs CAF.
#pragma once

#include <millrace/runtime/client/calls/receive_ring.hpp>
#include <millrace/runtime/client/calls/stream_view.hpp>
#include <millrace/runtime/client/stream.hpp>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace millrace::runtime {

/// A queue of samples in the order of the program's calls. Each waits for a place, is written, and
/// is told to the server after those before it. Several are told, and several places are asked for,
/// with one message.
/// Threads: any.
class stream_producing : public std::enable_shared_from_this<stream_producing> {
public:
  /// Errors:  `invalid_argument`; `no_space`.
  static result<std::shared_ptr<stream_producing>> make(
    std::shared_ptr<stream_view> view, const producer_options& options);

  future<void> append(const std::vector<tensor_view>& sample);
  future<void> end();
  /// Gives up what is under way, and the lease. Called when the program has dropped the producer.
  void close();

  const stream_status& stream() const noexcept { return view_->stream(); }

private:
  enum class state : std::uint8_t { queued, writing, written, failed };
  struct sample {
    std::shared_ptr<receive_ring::place> block; // null: nothing is under way any more
    std::uint64_t digest = 0;
    promise<void> done;
    state now = state::queued;
    std::uint32_t place = 0;
  };
  using sample_ptr = std::shared_ptr<sample>;

  // What is asked next.
  struct exchange {
    actors::append_samples_request request;
    std::vector<sample_ptr> told;
    bool waits = false;
    bool returns = false; // it has places that were lent
  };

  stream_producing(
    std::shared_ptr<stream_view> view, std::shared_ptr<receive_ring> ring,
    std::vector<std::uint64_t> begins)
    : view_(std::move(view)), ring_(std::move(ring)), begins_(std::move(begins)) {}

  status copy(const std::vector<tensor_view>& from, sample& to) const;
  void go_on();
  std::optional<exchange> next_exchange();
  std::size_t count_queued() const;
  void answered(const exchange& what, const result<actors::places_to_write>& answer);
  void write(const std::vector<sample_ptr>& some);
  void written(const std::vector<sample_ptr>& some, const result<void>& outcome);
  static void finish(sample& one, const result<void>& outcome);
  void forget(const std::weak_ptr<sample>& which);
  void leave_at_end();
  void left(const status& outcome);

  const std::shared_ptr<stream_view> view_;
  const std::shared_ptr<receive_ring> ring_;
  const std::vector<std::uint64_t> begins_; // of each field in a block
  std::mutex mutex_;                        // for what follows
  std::deque<sample_ptr> under_way_;
  std::vector<std::uint32_t> unused_; // places that are not needed
  bool telling_ = false;              // an exchange that does not wait is under way
  bool waiting_ = false;              // one that waits for places
  bool leaving_ = false;              // the end was asked for
  bool closed_ = false;
  std::optional<promise<void>> ending_;
};

} // namespace millrace::runtime
