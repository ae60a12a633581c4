// Reads batches of a stream: takes samples, reads them into the memory of a ring, compares their
// digests, and releases them.
// Internal, behind `stream_reader`; needs CAF.
#pragma once

#include <millrace/runtime/client/calls/loaded_batch.hpp>
#include <millrace/runtime/client/calls/receive_ring.hpp>
#include <millrace/runtime/client/calls/stream_view.hpp>
#include <millrace/runtime/client/stream.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

namespace millrace::runtime {

/// Each call goes its own way. It stops at the next step once nobody wants its batch any more.
/// Threads: any.
class stream_reading : public std::enable_shared_from_this<stream_reading> {
public:
  using outcome = std::optional<batch>;

  /// Errors:  `invalid_argument`; `no_space`.
  static result<std::shared_ptr<stream_reading>> make(
    std::shared_ptr<stream_view> view, const stream_reader_options& options);

  future<outcome> next(std::uint64_t samples, std::chrono::milliseconds timeout);
  /// Ends all calls, and gives the lease back. Called when the program has dropped the reader.
  void close();

  const stream_status& stream() const noexcept { return view_->stream(); }

private:
  struct call {
    std::uint64_t count = 0;
    time_point until;
    std::shared_ptr<receive_ring::place> place; // null: samples are read to it, or nobody waits
    bool is_reading = false;                    // it has samples
    std::shared_ptr<std::atomic<bool>> stop = std::make_shared<std::atomic<bool>>(false);
    promise<outcome> done;
  };
  using call_ptr = std::shared_ptr<call>;
  // What waits at the server. A call that is given up leaves it to the next one of its size.
  struct asking {
    std::uint64_t count = 0;
    call_ptr of; // null: the call was given up
    bool is_answered = false;
  };
  using asking_ptr = std::shared_ptr<asking>;
  // What a call has taken, on its way.
  struct taking {
    call_ptr of;
    std::vector<actors::given_sample> samples;
    std::shared_ptr<loaded_batch> data;
    status why;
  };
  using taking_ptr = std::shared_ptr<taking>;

  stream_reading(
    std::shared_ptr<stream_view> view, std::shared_ptr<receive_ring> ring,
    const stream_reader_options& options);

  status check(std::uint64_t samples, std::chrono::milliseconds timeout) const;
  status late(const call& one) const;
  void give_up(const call_ptr& one);
  asking_ptr ask_for(const call_ptr& one);
  void ask(const call_ptr& one);
  std::uint32_t patience_of(const call& one) const;
  void answered(const asking_ptr& asked, const result<actors::taken_samples>& answer);
  void go_on(const call_ptr& one, const result<actors::taken_samples>& answer);
  void end_asking(const asking_ptr& asked);
  status check(std::uint64_t count, const std::vector<actors::given_sample>& samples) const;
  void read(const taking_ptr& t, std::shared_ptr<receive_ring::place> place);
  remote_read parts_of(const taking& t) const;
  void compare(const taking_ptr& t) const;
  void arrived(const taking_ptr& t);
  std::shared_ptr<receive_ring::place> lend();
  void release(const std::vector<actors::given_sample>& samples, bool put_back);
  void fail_with(const call_ptr& one, const status& why);
  void look_at_next_end();
  void end_late(time_point looked_for);
  void leave_if_over();

  const std::shared_ptr<stream_view> view_;
  const std::shared_ptr<receive_ring> ring_;
  const stream_reader_options options_;
  std::vector<std::size_t> fields_; // all of them
  std::mutex mutex_;                // for what follows
  std::set<call_ptr> calls_;
  std::vector<asking_ptr> asked_;
  std::deque<call_ptr> unasked_; // as many as may wait at the server do
  std::set<time_point> looks_;   // for calls that are late, to come
  std::uint64_t handing_ = 0;    // of them, those whose outcome is being set
  std::condition_variable handed_out_;
  std::uint64_t releasing_ = 0; // calls that have their outcome, and whose samples are given back
  bool closed_ = false;
};

} // namespace millrace::runtime
