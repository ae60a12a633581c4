// Fills the windows of a reservation from a peer's memory. Used by stores and by saves of
// checkpoints.
#pragma once

#include <millrace/actors/layout_offsets.hpp>
#include <millrace/actors/operation.hpp>
#include <millrace/core/bulk_handle.hpp>
#include <millrace/storage/bucket.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace millrace::actors {

/// The parameters and the results of a pull. Used inside the context's actor only.
struct pull_work {
  std::shared_ptr<operation_context> context;
  staging_claim claim;       // the claim of the operations that asked
  staging_need need;         // of all the windows and blocks
  bulk_handle source;        // all tensors, one after the other
  std::uint64_t channel = 0; // by which the source's owner has asked, see `transfer::channel`
  layout_offsets offsets;
  bool checksums = true;
  bool write_back = false;            // movers write the lines back to the persistence domain
  std::vector<std::uint64_t> digests; // the digests of all tensors, if `checksums`
  bool stopped = false;               // nothing new is begun

  /// Keeps the digests that a transfer found for a piece; they begin at place `at` of the report.
  void keep_digests(
    const storage::piece& piece, const std::vector<std::uint64_t>& found, std::size_t& at);
};

struct filled_window {
  std::string driver;
  bool written_back = false;
};

/// Brings the bytes of one window to its pieces. `arrived(bytes)` says that so many bytes have left
/// the source and are in memory of this process. Both callbacks run in the actor.
using window_filler = std::function<void(
  storage::window, std::function<void(std::uint64_t)> arrived, completion<filled_window> done)>;

/// Returns a filler that does one transfer per window, straight to the pieces.
window_filler fill_directly(std::shared_ptr<pull_work> work);

/// The staging memory of snapshots.
struct snapshot_staging {
  std::shared_ptr<staging_lender> lender; // null: there are no snapshots
  std::uint64_t block_bytes = 0;
};

/// Returns a filler that goes through staging memory, several blocks at a time. A window counts as
/// arrived as soon as its bytes are in staging memory. The filler copies them to the window while
/// the next blocks arrive.
window_filler fill_through_staging(std::shared_ptr<pull_work> work, snapshot_staging blocks);

/// Acquires, fills and commits every window, several at a time.
class window_pull : public std::enable_shared_from_this<window_pull> {
public:
  struct events {
    std::function<void()> arrived;  // once: no byte of the source is needed any more
    completion<filled_window> done; // once: every window is committed, or the error
  };

  /// `room` must live until `done` has run or `stop` was called.
  window_pull(
    std::shared_ptr<pull_work> work, storage::window_space& room, window_filler fill,
    events events);

  void start();
  /// Stops the pull: it reports nothing more and does not touch `room` again.
  void stop();

private:
  void pump();
  void on_staging(std::uint32_t index, result<memory_block> staging);
  void on_window(result<storage::window> w);
  void on_arrived(std::uint64_t bytes);
  void on_filled(std::uint32_t index, result<filled_window> filled);
  void on_committed(const result<void>& committed);
  void end(result<filled_window> outcome);

  std::shared_ptr<pull_work> work_;
  storage::window_space* room_;
  window_filler fill_;
  events events_;
  filled_window outcome_;
  std::uint64_t arrived_bytes_ = 0;
  std::uint32_t windows_;
  std::uint32_t next_ = 0;
  std::uint32_t in_flight_ = 0;
};

} // namespace millrace::actors
