// One shard of a job in the trainer's process: its registration, saves in progress, and failures
// not yet reported. Internal, behind `checkpointer`; needs CAF.
#pragma once

#include <millrace/actors/checkpoint/checkpoint_messages.hpp>
#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/client/calls/save_failures.hpp>
#include <millrace/runtime/client/checkpointer.hpp>
#include <millrace/transport/memory/region.hpp>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace millrace::runtime {

/// Registers the shard, saves and restores it. Threads: any.
class shard_state : public std::enable_shared_from_this<shard_state> {
public:
  /// Checks the options and the tensors. Sends no request yet.
  static result<std::shared_ptr<shard_state>> make(
    std::shared_ptr<client_core> core, const checkpoint_options& options,
    std::vector<tensor_view> tensors);

  /// Finds the provider and registers for the first time. Retries for a while: an earlier job that
  /// has just died may still be attached.
  void attach(completion<void> done);

  pending_save save(
    std::uint64_t step, save_mode mode, std::span<const std::byte> extra,
    const std::optional<device_stream>& after);
  status fence();
  status fence(const device_stream& stream);
  future<void> fence_async();
  status rebind(const std::vector<tensor_view>& tensors);
  future<load_receipt> restore(std::optional<std::uint64_t> step);
  future<load_receipt> restore_shard(
    std::uint32_t rank, std::vector<load_target> targets, std::optional<std::uint64_t> step);
  future<checkpoint_summary> describe() const;
  const enroll_receipt& receipt() const noexcept { return receipt_; }
  status close(bool finished);
  future<void> close_async(bool finished);
  /// Withdraws the tensors, and ends the registration, also one that is being made. Waits for
  /// nothing.
  void give_up();
  /// Closes and logs a failure. Called when the last owner is destroyed. Does not wait on a thread
  /// that must not wait.
  void drop();

private:
  struct save_record;
  using save_record_ptr = std::shared_ptr<save_record>;

  // A registration whose memory was withdrawn when a save was cancelled. It ends when the last of
  // the other saves that were sent to it has an answer. Those that could not be read are sent anew.
  struct ending {
    std::uint64_t registration = 0;
    std::vector<save_record_ptr> unread;
  };

  // The last request to save: answers to earlier ones are stale. It is in place if it went to the
  // present registration.
  struct sending {
    std::uint64_t registration = 0; // 0: it was not sent, or is to be sent anew
    std::uint64_t exposure = 0;     // the exposure whose handle the service has
    std::uint32_t attempt = 0;

    bool operator==(const sending&) const = default;
  };

  // A save that has begun. `mutex_` guards all fields except the promises.
  struct save_record {
    std::uint64_t step = 0;
    save_mode mode = save_mode::direct;
    std::uint64_t run_min = 0; // this and the next one: as in `save_request`
    bool went_back = false;
    std::vector<std::byte> extra; // the user's, exposed until the record is gone
    transport::region extra_region;
    promise<save_receipt> staged, durable;
    bool ready = true;               // to be sent, as soon as the saves before it are
    std::optional<time_point> until; // the deadline, where it began before the save is sent
    sending sent;
    std::shared_ptr<ending> ends; // what has become of the registration to which it was sent
    bool over = false;
  };

  // A call that waits for a registration. `wants`: as for `enroll`.
  struct waiting {
    save_record_ptr wants;
    completion<std::uint64_t> done;
  };

  shard_state(std::shared_ptr<client_core> core, const checkpoint_options& options);

  /// Returns true if the registration behind a request is gone; the process may still run.
  static bool ends_registration(errc code);
  static status closed_error();

  std::uint32_t timeout_ms() const;
  std::uint32_t left_ms(const save_record& record) const;
  std::chrono::milliseconds patience() const;

  void enroll(const save_record_ptr& wants, completion<std::uint64_t> done);
  void ask_to_enroll();
  void on_enrolled(result<enroll_receipt> r);
  void enroll_patiently(const save_record_ptr& wants, completion<std::uint64_t> done);
  void enroll_until(
    const save_record_ptr& wants, time_point until, std::chrono::milliseconds wait,
    std::uint32_t pause_ms, completion<std::uint64_t> done);

  status send_after(const save_record_ptr& record, const device_stream& stream);
  void give_up_stream(const save_record_ptr& record);
  void send(const save_record_ptr& record);
  void send_soon();
  void send_ready() noexcept; // as on the loop
  save_record_ptr take_ready();
  bool in_place(const save_record& record) const;
  status still_reading() const;
  status check_layout(const std::vector<tensor_view>& tensors) const;
  void on_registered(const save_record_ptr& wanted_by, const status& why);
  void ask_to_save(const save_record_ptr& record, const sending& now);
  result<save_receipt> check_saved(const save_record& record, result<save_receipt> r);
  void on_staged(const save_record_ptr& record, const sending& then, result<save_receipt> r);
  void on_durable(const save_record_ptr& record, const sending& then, result<save_receipt> r);
  bool begins_anew(const save_record_ptr& record, const sending& then, const status& why);
  void fail_save(const save_record_ptr& record, const sending& then, const status& why);
  void forget_registration(std::uint64_t registration);
  void withdraw();
  void give_up_waiting();
  void abandon();
  void stop_registering();
  void cancel(const save_record_ptr& record);
  void end(const ending& what);
  void leave(bool finished, completion<void> done);
  void ask_to_leave(std::uint64_t registration, bool finished, completion<void> done);

  std::vector<save_record_ptr> under_way() const;
  std::vector<future<save_receipt>> being_read() const;
  status check_extra(std::uint64_t size_bytes) const;
  pending_save failed_save(const save_record& record, const status& why) const;
  pending_save not_begun(const save_record_ptr& record, const status& why);
  status take_failure();

  std::shared_ptr<client_core> core_;
  checkpoint_options options_;
  std::size_t provider_ = 0;       // found by `attach`
  actors::enroll_request request_; // to register; its shard never changes
  enroll_receipt receipt_;         // the receipt of the first registration

  mutable std::mutex mutex_;
  std::vector<tensor_view> tensors_;                // with the registered layout
  std::optional<transport::gather_list> to_expose_; // they, if they were checked and not exposed
  transport::region region_;
  std::uint64_t exposure_ = 0;        // counts how often the tensors were exposed
  std::uint64_t registration_ = 0;    // 0: none
  std::uint64_t extra_bytes_max_ = 0; // said the last registration
  bool enroll_asked_ = false;         // a request is on its way
  std::vector<waiting> enrolling_;    // for its outcome
  std::deque<save_record_ptr> saves_; // saves not yet over, in the order in which they began
  bool sends_ = false;                // a thread sends those that are ready
  bool registering_ = false;          // for the first of them that was not sent
  std::uint32_t rebinding_ = 0;       // threads that withdraw memory which the tensors have left
  save_failures failures_;            // not yet reported
  bool has_saved_ = false;            // or has tried to, since the last restore
  std::uint64_t run_ = 0;             // the last one in which it took part, as far as it knows
  std::uint64_t run_min_ = 0;         // of saves since the last restore
  bool went_back_ = false;            // no save has begun since then
  bool closed_ = false;               // no new save begins
  promise<void> ended_;               // set when closing has ended, however it ended
  bool left_ = false;                 // no new registration begins
};

} // namespace millrace::runtime
