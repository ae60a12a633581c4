// The samples of a set, read from the files that it was preloaded from. Used by `whole_set` when a
// data server is lost, and by `window_reading` for what a window does not keep.
// Internal; needs CAF.
#pragma once

#include <millrace/core/working_set.hpp>
#include <millrace/runtime/client/working_set.hpp>
#include <millrace/storage/samples/sample_reader.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace millrace::runtime {

/// Returns how a program wants files to be opened.
inline storage::samples::sample_options sample_options_of(const set_file_options& wanted) {
  using storage::samples::sample_kind;
  static_assert(static_cast<int>(preload_kind::files) == static_cast<int>(sample_kind::files));
  return {
    .kind = static_cast<sample_kind>(wanted.kind),
    .fields = wanted.fields,
    .labels = wanted.labels,
    .decode = wanted.decode,
    .image_pixels_max = wanted.image_pixels_max,
    .skips_damaged = wanted.on_error == damage_policy::skip};
}

/// Returns why a file is left out that the preload of a set has left out.
inline status left_out_by(const set_info& set) {
  return {errc::corrupt_data, "the preload of working set {} has found it damaged", set.name};
}

/// Samples of one field that follow each other, and where they go.
struct wanted_samples {
  std::uint64_t first = 0;
  std::uint64_t count = 0; // 1 if they vary
  std::uint64_t bytes = 0;
  std::byte* to = nullptr;
};

/// The files are opened for the first read. They are read in the order of the calls, by one thread;
/// or by several, each of which works on one call: as many as there are cores, and 4 at most unless
/// reading computes. Threads end when nothing is left to read.
/// Errors:  of all reads: those of the files; `invalid_argument` when the files are not those of
///          the set, saying what differs; `no_space` when there is no thread.
/// Threads: any. Completions run on those threads.
class set_files : public std::enable_shared_from_this<set_files> {
public:
  using stop_flag = std::shared_ptr<const std::atomic<bool>>;

  set_files(
    set_info set, std::vector<std::string> files, storage::samples::sample_options options,
    bool with_threads = false);

  /// Returns the bytes of samples of a field that varies, in the order of `ids`.
  void lengths(
    std::size_t field, std::vector<std::uint64_t> ids, completion<std::vector<std::uint64_t>> done);
  /// Reads samples. What was not begun when `stop` became true is left out. `done` runs once
  /// nothing writes to the memory any more. Errors: `cancelled`, too.
  void read(
    std::size_t field, std::vector<wanted_samples> wanted, completion<void> done, stop_flag stop);

  /// Returns how many samples were read here, each field of one counted.
  std::uint64_t samples_read() const noexcept { return samples_read_; }

private:
  // Gets why nothing can be read, or none.
  using job = std::function<void(const status&)>;

  void add(job next);
  void start_threads();
  void work_off();
  void work_on(const job& next);
  void end_all(const status& why);
  job take_one(bool is_first);
  status open();
  std::size_t threads_for(const storage::samples::sample_reader& reader) const;
  status check(const storage::samples::sample_reader& reader) const;
  status read_now(
    std::size_t field, const std::vector<wanted_samples>& wanted, const stop_flag& stop);

  const set_info set_;
  const std::vector<std::string> files_;
  const storage::samples::sample_options options_;
  const bool with_threads_;
  std::mutex opening_; // for `reader_`, which is made once
  std::unique_ptr<storage::samples::sample_reader> reader_;
  std::atomic<std::uint64_t> samples_read_ = 0;
  std::mutex mutex_; // for what follows
  std::deque<job> waiting_;
  std::size_t threads_ = 0;     // that work
  std::size_t starting_ = 0;    // of these, that have taken no job yet
  std::size_t threads_max_ = 1; // more once the files are open
};

} // namespace millrace::runtime
