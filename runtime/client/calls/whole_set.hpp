// Working sets whose parts lie on several data servers, read as one. Used by `set_reader`.
// Internal; needs CAF.
#pragma once

#include <millrace/core/clock.hpp>
#include <millrace/runtime/client/calls/set_files.hpp>
#include <millrace/runtime/client/calls/set_view.hpp>
#include <millrace/runtime/client/calls/window_reading.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace millrace::runtime {

/// Makes what reads samples from their files: those that a set was preloaded from (0), or those of
/// its appends (1, 2, ...), which `of` describes. Null: nothing does.
using make_files =
  std::function<std::shared_ptr<set_files>(const set_info& of, std::size_t number)>;

/// A set that is open at each data server that has a part of it. What is read of several parts is
/// asked of all of them at once. A set that is not divided is one part. What was appended when the
/// set was opened is divided among the same nodes, so there are as many parts more for each append.
///
/// A read that its server has failed is repeated once, if the same part can be opened again: the
/// connection was lost, and with it the lease.
///
/// With files, the samples of a part whose server is lost are read from them. `reading.retry` after
/// that the part is opened again, and read from its server once that has it.
///
/// Of a window the samples come from the window or the files, see `window_reading`.
/// Threads: any.
class whole_set : public std::enable_shared_from_this<whole_set> {
public:
  using stop_flag = std::shared_ptr<const std::atomic<bool>>;

  /// Opens what the home has, and then the other parts of the same preload, and of the appends.
  /// `files`: null, or they stand for parts at other nodes that cannot be opened; a window needs
  /// them.
  static void open(
    std::shared_ptr<client_core> core, const std::string& name, make_files files,
    completion<std::shared_ptr<whole_set>> done);

  const set_info& info() const noexcept { return info_; }
  const std::shared_ptr<client_core>& core() const noexcept { return core_; }
  std::size_t parts() const noexcept { return firsts_.size() - 1; }
  /// Returns what a part is read by. Errors: why its server was lost.
  result<std::shared_ptr<set_view>> part(std::size_t index) const;
  /// Opens a part again that `view` has failed to read; null: that is lost. Waits for a connection
  /// as long as reads do. Errors: `why`.
  result<std::shared_ptr<set_view>> opened_again(
    std::size_t index, const std::shared_ptr<set_view>& view, const status& why) const;
  /// Returns true if all parts are mapped in this process now.
  bool is_mapped() const;
  /// Returns how many samples came from files, each field of one counted.
  std::uint64_t samples_from_files() const noexcept;
  /// Returns how many samples came from a window, each field of one counted.
  std::uint64_t samples_from_window() const noexcept {
    return window_ ? window_->samples_read() : 0;
  }
  /// Returns the first sample of a part.
  std::uint64_t first_of(std::size_t part) const noexcept { return firsts_[part]; }

  /// Returns where samples lie in their parts, and their digests, in the order of `ids`. As
  /// `set_view::entries`. Of samples that are in files only the length is known, see `in_files`.
  /// Nothing is waited for when `stop`, which may be null, became true.
  void entries(
    std::size_t field, const std::vector<std::uint64_t>& ids,
    completion<std::vector<sample_entry>> done, const stop_flag& stop = nullptr) const;

  /// Reads samples into `into`, one after the other. `where`: their entries, if they vary; nothing
  /// otherwise. `into` has exactly their bytes. `uses`: of a window, when they are needed again;
  /// may be null. As `set_view::read`.
  void read(
    std::size_t field, const std::vector<std::uint64_t>& ids,
    const std::vector<sample_entry>& where, std::span<std::byte> into, completion<void> done,
    stop_flag stop, const std::shared_ptr<const sample_uses>& uses = nullptr) const;
  /// Reads all samples of a field whose samples have one size.
  void read_all(
    std::size_t field, std::span<std::byte> into, completion<void> done, stop_flag stop) const;

private:
  /// The address of a sample that is in files.
  static constexpr auto in_files = ~std::uint64_t{0};

  // Samples that were preloaded, or appended, at once. Each node has a part of them.
  struct segment {
    std::uint64_t first = 0;
    std::uint64_t samples = 0;
    set_info home = {};                         // what the first part says
    std::shared_ptr<set_files> files = nullptr; // may be null
  };
  // What is read of one part: ranges of its space, and the same samples in the files.
  struct part_read {
    std::vector<set_range> ranges;
    std::vector<wanted_samples> wanted; // without files: none
    bool only_in_files = false;
    std::shared_ptr<const sample_uses> uses = nullptr;
  };
  // A read that goes on by another view. It is told once: by the answer, or by who cancels.
  struct waiting_read {
    std::atomic<bool> over = false;
    stop_flag stop; // may be null
    completion<std::shared_ptr<set_view>> done;
  };
  struct open_part {
    std::shared_ptr<set_view> view; // null: its server is lost
    status why;                     // it is
    time_point again_at;            // it is opened again, or waited for
    bool opening = false;
    std::vector<std::shared_ptr<waiting_read>> waiting; // for the part to be opened again at once
  };

  whole_set(std::shared_ptr<client_core> core, const set_info& home, set_info whole);

  static void open_rest(
    const std::shared_ptr<set_view>& home, const make_files& files,
    completion<std::shared_ptr<whole_set>> done);
  void open_parts(const std::vector<std::size_t>& which, completion<void> done);
  result<void> take(std::size_t index, const result<std::shared_ptr<set_view>>& opened);
  static void open_window(
    const std::shared_ptr<whole_set>& self, const std::shared_ptr<set_view>& home,
    completion<std::shared_ptr<whole_set>> done);
  result<std::shared_ptr<set_view>> checked(
    std::size_t index, const result<std::shared_ptr<set_view>>& opened) const;
  status not_opened(std::size_t index, const status& why) const;
  bool belongs(const set_info& part, std::size_t index) const;
  const segment& segment_of(std::size_t part) const noexcept {
    return segments_[part / nodes_.size()];
  }
  const std::shared_ptr<set_files>& files_of(std::size_t part) const noexcept {
    return segment_of(part).files;
  }
  const std::string& node_of(std::size_t part) const noexcept {
    return nodes_[part % nodes_.size()];
  }
  // The id by which a node finds its part.
  set_id id_of(std::size_t part) const noexcept;
  std::shared_ptr<set_view> view_of(std::size_t index) const; // null: its server is lost
  bool is_lost(std::size_t index, const status& why) const;
  void lose(std::size_t index, const std::shared_ptr<set_view>& view, const status& why) const;
  void open_again(std::size_t index) const;
  void open_lost(std::size_t index, completion<std::shared_ptr<set_view>> done) const;
  void open_appended_again(std::size_t index, completion<std::shared_ptr<set_view>> done) const;
  // Says how to go on with what `view` has failed to read: by another view; from the files, if it
  // is null; or not at all.
  void after_loss(
    std::size_t index, const std::shared_ptr<set_view>& view, const status& why, bool may_reopen,
    const stop_flag& stop, completion<std::shared_ptr<set_view>> done) const;
  void reopen(
    std::size_t index, const std::shared_ptr<set_view>& view, const stop_flag& stop,
    completion<std::shared_ptr<set_view>> done) const;
  void ask_for(std::size_t index, const std::shared_ptr<set_view>& view, time_point until) const;
  static void tell(
    const std::shared_ptr<waiting_read>& one, const result<std::shared_ptr<set_view>>& opened);
  // Ends a read that was cancelled. Returns whether it waits still.
  static bool still_waits(const std::shared_ptr<waiting_read>& one);
  void entries_of(
    std::size_t index, std::size_t field, std::vector<std::uint64_t> ids,
    completion<std::vector<sample_entry>> done, const stop_flag& stop) const;
  void entries_by(
    const std::shared_ptr<set_view>& view, std::size_t index, std::size_t field,
    std::vector<std::uint64_t> ids, completion<std::vector<sample_entry>> done,
    const stop_flag& stop, bool may_reopen) const;
  void entries_from_files(
    std::size_t index, std::size_t field, std::vector<std::uint64_t> ids,
    completion<std::vector<sample_entry>> done) const;
  void read_part(
    std::size_t index, std::size_t field, part_read what, std::span<std::byte> into,
    completion<void> done, const stop_flag& stop) const;
  void read_by(
    const std::shared_ptr<set_view>& view, std::size_t index, std::size_t field,
    std::shared_ptr<part_read> what, std::span<std::byte> into, completion<void> done,
    const stop_flag& stop, bool may_reopen) const;
  std::size_t part_with(std::uint64_t id) const noexcept {
    if (segments_.size() > 1)
      return appended_part_with(id);
    return parts() == 1 ? 0 : millrace::part_of(info_.samples, parts(), id);
  }
  std::size_t appended_part_with(std::uint64_t id) const noexcept;
  void read_parts(
    std::size_t field, std::vector<part_read> what, std::span<std::byte> into,
    completion<void> done, const stop_flag& stop) const;

  const std::shared_ptr<client_core> core_;
  const set_info info_; // of the whole
  const std::vector<std::string> nodes_;
  std::vector<segment> segments_;     // what was preloaded, and then the appends
  std::vector<std::uint64_t> firsts_; // the first sample of each part, and the number of samples
  bool has_files_ = false;            // of any segment
  std::shared_ptr<window_reading> window_; // null: the set is none
  mutable std::mutex mutex_;               // for what follows
  mutable std::vector<open_part> parts_;
};

} // namespace millrace::runtime
