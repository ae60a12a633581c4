// The samples of a set of which a data server keeps a window: taken from there, or read from the
// files and written there. Used by `whole_set`.
// Internal; needs CAF.
#pragma once

#include <millrace/core/planted_fault.hpp>
#include <millrace/core/sample_order.hpp>
#include <millrace/runtime/client/calls/set_files.hpp>
#include <millrace/runtime/client/calls/set_view.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

namespace millrace::runtime {

/// When the samples of a batch are needed again.
struct sample_uses {
  sample_order next;        // of the next epoch
  std::uint64_t left = 0;   // samples of this epoch that come after the batch begins
  std::uint64_t passed = 0; // samples of the batch
  std::size_t field = 0;    // whose reading tells that they pass: once, not with each field

  std::uint64_t after(std::uint64_t sample) const { return left + next.position_of(sample); }
};

/// Reads by a lease of the window. The window is a cache, and the files are the original: when it
/// is lost, or gives other bytes than were written, the files stand for it. `reading.retry` after a
/// loss it is opened again.
///
/// Writes have memory of a quarter of the window: 1 MiB at least, and 64 MiB at most. What does not
/// fit into it at once is written in pieces of an eighth of it; its read ends after that.
///
/// Whatever writes to the memory of a read holds its completion. Where memory lacks for a step, it
/// is dropped: who reads makes it fail then. The lease is given back, and with it what the server
/// has lent for the step.
/// Threads: any.
class window_reading : public std::enable_shared_from_this<window_reading> {
public:
  using stop_flag = std::shared_ptr<const std::atomic<bool>>;

  /// Asks for the right to write to a window that was opened. Without it, what is read from files
  /// is not kept.
  static void open(
    const std::shared_ptr<set_view>& view, std::shared_ptr<set_files> files,
    completion<std::shared_ptr<window_reading>> done);

  /// Reads samples of a field. All of them go to the memory `into`. `uses`: when they are needed
  /// again; null: nobody knows. As `set_files::read`, but that `done` is dropped without memory;
  /// then, too, nothing writes there any more.
  void read(
    std::size_t field, std::vector<wanted_samples> wanted,
    const std::shared_ptr<const sample_uses>& uses, std::span<std::byte> into,
    completion<void> done, const stop_flag& stop);

  /// Returns how many samples came from the window, each field of one counted.
  std::uint64_t samples_read() const noexcept { return samples_read_; }

  /// Returns true if the window is open and mapped in this process now.
  bool is_mapped();

private:
  // A window that is open.
  struct lease {
    std::shared_ptr<set_view> view;
    std::vector<bulk_handle> writable; // its regions; empty: they may not be written to
  };
  using lease_ptr = std::shared_ptr<const lease>;
  struct reading;
  struct large_samples;
  using large_ptr = std::shared_ptr<large_samples>;
  using region_writes = std::map<std::uint64_t, transport::transfer>; // by region
  using reading_ptr = std::shared_ptr<reading>;
  // Samples of a reading, by their places in it.
  using places = std::vector<std::uint32_t>;
  using flags = std::vector<std::atomic<bool>>;

  // A batch of one field.
  struct reading {
    std::size_t field = 0;
    std::vector<wanted_samples> wanted; // of one sample each
    std::shared_ptr<const sample_uses> uses;
    std::uint64_t passed = 0; // samples that the server has not heard of yet
    std::span<std::byte> into;
    completion<void> done;
    stop_flag stop;
    lease_ptr from = nullptr;
    std::atomic<bool> answered = false; // by the server, or by who cancels
    std::vector<actors::kept_value> kept = {};
    std::unordered_map<std::uint32_t, std::uint64_t> to_write = {}; // addresses, by place
  };

  // Samples that are being written to the window.
  struct kept_samples {
    actors::return_values_request told;
    std::map<std::uint64_t, transport::transfer> writes; // by region
  };

  // Samples for which there was no memory at once.
  struct large_samples {
    large_samples() = default;
    ~large_samples() {
      if (turn_of)
        turn_of->begin_large();
    }
    large_samples(const large_samples&) = delete;
    large_samples& operator=(const large_samples&) = delete;

    reading_ptr of;
    places which;
    completion<void> done;
    std::size_t at = 0;       // in `which`
    std::uint64_t offset = 0; // in this sample
    std::uint64_t digest = 0; // of this sample
    actors::return_values_request told = {};
    std::shared_ptr<window_reading> turn_of = nullptr; // while they are written; then the next ones
  };

  window_reading(lease_ptr first, std::shared_ptr<set_files> files);

  static void open_lease(
    const std::shared_ptr<set_view>& view, completion<std::shared_ptr<const lease>> done);
  lease_ptr now();
  void open_again();
  void lose(const lease_ptr& which);
  template <class Step>
  void attempt(const lease_ptr& by, Step step) noexcept;
  void begin(const reading_ptr& r);
  void ask(const reading_ptr& r);
  // Ends a reading that was cancelled. Returns whether it waits for the server still.
  bool still_waits(const reading_ptr& r);
  void return_all(const reading_ptr& r, const actors::taken_values& values);
  void taken(const reading_ptr& r, const actors::taken_values& values);
  void read_kept(const reading_ptr& r, completion<void> done);
  void not_read(const reading_ptr& r, const status& why, completion<void> done);
  void compare(const reading_ptr& r, completion<void> done);
  void compared(const reading_ptr& r, const flags& damaged, completion<void> done);
  void read_files(const reading_ptr& r, const places& which, completion<void> done);
  void read_some(const reading_ptr& r, const places& which, completion<void> done);
  places keep(const reading_ptr& r, const places& which, bool is_read);
  static bool has_place(const reading_ptr& r, std::uint32_t place);
  bool keep_one(const reading_ptr& r, std::uint32_t place, kept_samples& into);
  static void add_write(
    const reading_ptr& r, std::uint64_t address, const memory_block& from, std::uint64_t length,
    region_writes& into);
  void submit_writes(region_writes& by_region, completion<void> done) const;
  void keep_large(const reading_ptr& r, places which, completion<void> done);
  void write_piece(const large_ptr& all);
  void wrote_piece(const large_ptr& all, std::uint64_t length, bool is_written);
  void begin_large() noexcept;
  bool memory();
  void give_back(const reading_ptr& r, actors::return_values_request what);

  const std::shared_ptr<client_core> core_;
  const set_info set_;
  const std::shared_ptr<set_files> files_;
  std::atomic<std::uint64_t> samples_read_ = 0;
  std::once_flag makes_memory_;
  std::shared_ptr<memory_source> memory_; // what is written comes from it; null: there is none
  memory_block piece_;                    // of it: for values that are written in pieces
  std::uint64_t piece_bytes_ = 0;
  std::atomic<bool> lacks_memory_ = false;
  std::mutex mutex_; // for what follows
  lease_ptr lease_;  // null: the window is lost
  time_point again_at_;
  bool opening_ = false;
  bool writes_large_ = false;
  std::deque<large_ptr> large_; // they wait until another one is written
};

// Each step that others call is an attempt. They are threads of the network, of files and of
// copies, and hear nothing of what it lacks.
template <class Step>
void window_reading::attempt(const lease_ptr& by, Step step) noexcept {
  try {
    MILLRACE_PLANTED_FAULT(typeid(window_reading));
    step();
  } catch (...) {
    if (by)
      lose(by);
  }
}

} // namespace millrace::runtime
