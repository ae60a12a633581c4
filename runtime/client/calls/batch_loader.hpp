// Reads the batches of one rank ahead of the program, and hands them out in their order.
// Internal, behind `loader`; needs CAF.
#pragma once

#include <millrace/core/batch_walk.hpp>
#include <millrace/runtime/client/calls/batch_memory.hpp>
#include <millrace/runtime/client/calls/client_core.hpp>
#include <millrace/runtime/client/calls/loaded_batch.hpp>
#include <millrace/runtime/client/loader.hpp>
#include <millrace/runtime/client/working_set.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace millrace::runtime {

/// Two queues: of batches that were read or are being read, with the ends of epochs among them; and
/// of the program's calls. Who adds to one of them hands out what is ready, one thread at a time.
/// Threads: any.
class batch_loader : public std::enable_shared_from_this<batch_loader> {
public:
  using outcome = std::optional<batch>;

  /// Begins to read. Errors: as `set_reader::load_batches`.
  static result<std::shared_ptr<batch_loader>> make(
    const std::shared_ptr<client_core>& core, const set_reader& reader,
    const loader_options& options);

  future<outcome> next();
  loader_state state() const;
  status seek(const loader_state& to);
  status set_epoch(std::uint64_t epoch);
  std::uint64_t batches_left() const;
  loader_counts counts() const;
  loader_options options() const;
  const set_reader& reader() const noexcept { return reader_; }
  batch_plan plan() const noexcept { return plan_; }
  std::string processors() const { return memory_.processors(); }

private:
  // Waits to be handed out.
  struct entry {
    std::shared_ptr<loaded_batch> data; // null: the end of an epoch
    std::uint64_t epoch = 0;
    std::uint64_t position = 0;
    std::vector<std::vector<sample_entry>> where; // of each field; empty if it does not vary
    std::shared_ptr<const sample_uses> uses;      // of a window
    std::uint64_t bytes = 0;                      // that are read; 0: not known yet
    bool ready = false;
    status why;
  };
  using entry_ptr = std::shared_ptr<entry>;
  using entries = std::deque<entry_ptr>;

  // Waits for an entry.
  struct call {
    promise<outcome> done;
    std::uint64_t number = 0;
    bool waits = false; // no batch was there when it came
    time_point since;
  };

  struct handing {
    call to;
    result<outcome> what;
    entry_ptr from; // null: an error
    std::uint64_t era = 0;
    entries dropped;      // destroyed without the lock, since places come back then
    loader_counts before; // what a call that was cancelled leaves
  };

  batch_loader(
    std::shared_ptr<client_core> core, set_reader reader, const loader_options& options,
    std::vector<std::size_t> fields, batch_memory places);

  void go_on();
  bool read_ahead();
  bool begin_reading(const entry_ptr& one);
  template <class Step>
  void go_on_with(const entry_ptr& one, Step step);
  status without_memory() const;
  entry_ptr begin_one();
  void give_memory(entry& to, batch_step step, const batch_memory::lent& places);
  std::shared_ptr<const sample_uses> uses_of(const batch_step& step) const;
  void answer_without_memory();
  void read(const entry_ptr& one);
  void make_room(const entry_ptr& one);
  void fill(const entry_ptr& one, const std::vector<loaded_batch::lengths>& of);
  void note_bytes(entry& one);
  void fill_fields(const entry_ptr& one);
  future<void> fill_field(const entry& one, std::size_t i) const;
  void end_reading(const entry_ptr& one, const status& why);
  void filled(const entry_ptr& one, const status& why);
  void arrived(const entry_ptr& one, const status& why);
  void hand_out();
  std::optional<handing> next_handing();
  void take_error(handing& h, const entry& failed);
  std::shared_ptr<const loaded_batch> counted(std::shared_ptr<loaded_batch> data) const;
  void settle(const handing& h, bool taken);
  void count(const handing& h);
  void forget(std::uint64_t number);
  status go_to(std::uint64_t epoch, std::uint64_t position, std::uint64_t seed, shuffle_kind how);
  std::size_t batches_ahead() const;
  bool reads_enough() const;

  const std::shared_ptr<client_core> core_;
  const set_reader reader_;
  const std::vector<std::size_t> fields_;  // of the set
  const std::vector<std::size_t> varying_; // the places in `fields_` of those that vary
  const batch_plan plan_;
  const bool in_turn_; // large batches are read one after the other
  const batch_memory memory_;
  const std::shared_ptr<std::atomic<std::size_t>> held_ = // batches that the program has
    std::make_shared<std::atomic<std::size_t>>(0);
  mutable std::mutex mutex_; // for what follows
  loader_options options_;
  batch_walk walk_; // what is read next
  entries ahead_;
  std::deque<call> calls_;
  std::uint64_t last_call_ = 0;
  std::uint64_t era_ = 0;    // rises when the loader goes elsewhere
  bool handing_out_ = false; // a thread does
  bool stopped_ = false;     // after an error, until the next call
  loader_counts counts_;
};

} // namespace millrace::runtime
