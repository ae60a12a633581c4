// Working sets: training data in the memory of data servers. Called by programs and by the command
// line.
#pragma once

#include <millrace/core/future.hpp>
#include <millrace/core/progress.hpp>
#include <millrace/core/sample_order.hpp>
#include <millrace/core/working_set.hpp>
#include <millrace/runtime/client/loader.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

namespace runtime {
class client_core;
class whole_set;
struct sample_uses;
} // namespace runtime

/// What files are read as.
enum class preload_kind : std::uint8_t {
  automatic, // arrays or archives if their names end so, or else files; a directory: files
  arrays,    // a directory: all files in it whose names end as those of arrays
  files      // each file is a sample
};

/// Reads "automatic", "arrays" or "files". Errors: `invalid_argument` naming the text.
result<preload_kind> parse_preload_kind(std::string_view text);

/// What becomes of a file that is damaged or cannot be read.
enum class damage_policy : std::uint8_t {
  fail, // the preload fails, and names it
  skip  // it is left out; where that turns out late, the preload begins again without it
};

/// Reads "fail" or "skip". Errors: `invalid_argument` naming the text.
result<damage_policy> parse_damage_policy(std::string_view text);

/// As what files are read: the same for a preload and for what reads its files again.
struct set_file_options {
  preload_kind kind = preload_kind::automatic;
  std::vector<std::string> fields = {}; // to take, in this order; empty: all
  /// Where labels of files come from: "folders", or the path of a CSV file; empty: there are none.
  std::string labels = {};
  damage_policy on_error = damage_policy::fail;
  /// Fields whose samples are images in JPEG or PNG, and as what they are decoded: "x=rgb:224",
  /// "jpg=gray:28x28", or "x=rgb" where all images have one size. The field becomes u8 [height,
  /// width, channels]. docs/data.md says how images get their size.
  std::vector<std::string> decode = {};
  std::uint64_t image_pixels_max = std::uint64_t{1} << 26; // an image with more is damaged
};

struct preload_options : set_file_options {
  /// Of each request to the data server; 0: the client's request timeout. The files take as long as
  /// they take.
  std::chrono::milliseconds timeout{0};
  /// Called with bytes of samples, now and then, on a thread of the client: what all clients have
  /// read that share the reading. False ends this preload with `cancelled`; the others go on.
  progress_callback progress;
  /// Called once, on a thread of the client, when another client preloads the set, and this one has
  /// nothing to read for it: it waits. The status says for which one. Not called after a cancel.
  std::function<void(const status&)> waits = {};
  /// The set goes by itself when every client that has preloaded it so, or has it open, is gone. A
  /// preload without this makes it stay.
  bool while_used = false;
  /// Data servers among which the samples are divided; 0: all that there are. A set never has more
  /// parts than samples.
  std::uint32_t servers = 1;
  /// For a set that is larger than the memory of a data server: so many bytes of it keep samples,
  /// rounded up to regions, and this preload reads none. Readers take what is kept, read the rest
  /// from the files, and write it there, if it is needed earlier than what is kept. 0: the memory
  /// has all samples.
  std::uint64_t window_bytes = 0;
};

struct append_options : set_file_options {
  /// As those of `preload_options`.
  std::chrono::milliseconds timeout{0};
  progress_callback progress;
  std::function<void(const status&)> waits = {};
};

/// The files of one append, and as what they were read.
struct appended_files : set_file_options {
  std::vector<std::string> files = {};
};

struct open_options : set_file_options {
  /// The files that the set was preloaded from, read as they were then. When the data server of a
  /// part is lost, its samples are read from them, by a thread of this process with its rights,
  /// until the server has the part again. They are opened then, and must be those that were
  /// preloaded, unchanged. Empty: reads of those samples fail. Of a window several threads read the
  /// samples that it does not have; empty: the files that this client has preloaded it from.
  std::vector<std::string> files = {};
  /// Those of the appends, in their order, for the samples that they have brought. Where they are
  /// missing, reads of those samples fail.
  std::vector<appended_files> appended = {};
};

/// A file that was left out, and why.
struct skipped_file {
  std::string path; // of a sample in a tar archive: that of the archive, a colon, and its name
  status why;
};

struct preloaded_set {
  set_info set;
  bool existed = false; // it was there already, and was left as it is, or got missing parts back
  /// With `damage_policy::skip`. If the set was there already: those that are seen at once, and
  /// those that it names.
  std::vector<skipped_file> skipped;
  /// Bytes of samples that this preload has read from the files; other clients have read the rest,
  /// or it was there.
  std::uint64_t read_bytes = 0;
};

/// How this process reaches the memory of a set, or of a part of one.
struct part_access {
  std::string node;
  std::string by; // "mapped", or the driver of its transfers; empty: it cannot be read now
  status why;     // it cannot

  friend bool operator==(const part_access&, const part_access&) = default;
};

/// How this process would read a set.
struct set_access {
  /// Those of the preload, one if the set is not divided, and then those of each append.
  std::vector<part_access> parts;
  std::string processors; // see `loader::processors`

  friend bool operator==(const set_access&, const set_access&) = default;
};

/// Some samples of a set whose digests do not match.
struct set_damage {
  std::uint64_t samples = 0;        // that were compared, in all their fields
  std::uint64_t damaged = 0;        // of them, in one field or more
  std::vector<std::uint64_t> first; // the first ones that are damaged, ten at most

  friend bool operator==(const set_damage&, const set_damage&) = default;
};

/// A working set that is open. On the host of its data server its memory is mapped, once, for
/// reading, and what is read after that costs no message. From other hosts it is read by transfers.
///
/// A data server keeps the memory for those who have the set open, also after the set was unloaded.
/// It does not when the connection is lost: then reads go on while the memory is the set's, and
/// fail with `not_found` once it is not; on other hosts they fail at once. No read gives bytes of
/// another set.
///
/// Copies share the mapping and the lease; the last one gives them back.
/// Threads: any.
class set_reader {
public:
  explicit set_reader(std::shared_ptr<runtime::whole_set> view) : view_(std::move(view)) {}

  const set_info& info() const noexcept;
  /// Returns how many samples were read from files since the set was opened, because a data server
  /// was lost (`open_options::files`), or because a window did not have them; each field of a
  /// sample counts.
  std::uint64_t samples_from_files() const noexcept;
  /// Returns how many came from a window; 0 for a set that has all samples in memory.
  std::uint64_t samples_from_window() const noexcept;
  /// Returns the order in which an epoch visits the samples.
  sample_order order(std::uint64_t seed, std::uint64_t epoch, shuffle_kind shuffle = {}) const;

  /// Returns the bytes of samples of one field, in the order of `ids`.
  /// Errors:  `invalid_argument` for a field or an id that the set does not have; `corrupt_data`
  ///          naming a sample of a damaged table; otherwise as `read_batch`.
  future<std::vector<std::uint64_t>> sizes(std::size_t field, std::vector<std::uint64_t> ids) const;

  /// Finds samples by a text that they have: those of files by the field "path", those of archives
  /// by "key". Returns their ids, in the order of `texts`; of several with the same text the first
  /// one. A call looks at the texts of all samples, front to back, so ask for many at once.
  /// Errors:  `invalid_argument` for a field that the set does not have, or whose samples are no
  ///          texts (u8 of one dimension, which varies); `not_found` naming a text that no sample
  ///          has;
  ///          `cancelled`; otherwise as `read_batch`.
  /// Source:  the loading paper, section 4.2: samples of a fileset have their paths as ids.
  future<std::vector<std::uint64_t>> find(std::size_t field, std::vector<std::string> texts) const;

  /// Reads samples of one field, one after the other, without gaps, in the order of `ids`.
  /// Shape:   `ids.size()` times the field's `bytes`, row-major; for a field that varies, the sum
  ///          of the samples' `sizes`.
  /// Errors:  `invalid_argument` for a field or an id that the set does not have, or a size of
  ///          `into` that does not fit, before any byte is copied; `not_found` when the memory is
  ///          not the set's any more; `corrupt_data` as for `sizes`; from another host `peer_lost`
  ///          naming the node, and `no_space` when there is no memory for `reading.staging`; the
  ///          bytes are then undefined.
  /// Threads: the memory must live until the result is there. Batches up to 256 KiB of a mapped
  ///          set are copied by the caller, larger ones by the client's threads.
  /// Source:  the loading paper, section 4.2 `Readbatch` and section 4.4.
  future<void> read_batch(
    std::size_t field, std::vector<std::uint64_t> ids, std::span<std::byte> into) const;
  /// Copies one sample. As `read_batch`.
  future<void> read(std::size_t field, std::uint64_t id, std::span<std::byte> into) const;
  /// Copies all samples of a field, in the order of their ids. As `read_batch`.
  /// Source:  the loading paper, section 4.2 `Load`.
  future<void> load(std::size_t field, std::span<std::byte> into) const;

  /// Makes a loader, which reads batches of one rank ahead of a training.
  /// Errors:  `invalid_argument` naming the option; `no_space` without memory for the ring.
  result<loader> load_batches(const loader_options& options) const;

  /// Compares every sample with the digest that was taken when it was preloaded.
  /// Errors:  `cancelled` when `progress` says so; `not_found` as for `read_batch`.
  future<set_damage> verify(progress_callback progress = {}) const;

private:
  friend class runtime::batch_loader;

  // Returns where samples of a field that varies lie, for `read_at`. Errors: as `sizes`.
  future<std::vector<sample_entry>> entries(
    std::size_t field, const std::vector<std::uint64_t>& ids) const;
  // Reads samples. `where`: their entries, if they vary. `uses`: of a window, when they are needed
  // again; may be null. As `read_batch`.
  future<void> read_at(
    std::size_t field, const std::vector<std::uint64_t>& ids,
    const std::vector<sample_entry>& where, std::span<std::byte> into,
    const std::shared_ptr<const runtime::sample_uses>& uses) const;

  std::shared_ptr<runtime::whole_set> view_;
};

/// A working set by its name. Its home keeps it, or its first part: a data server that every client
/// computes from the name, among the nodes that have one.
/// Errors:  common to all calls: `not_found` when no node has a data server; `peer_lost` and
///          `unavailable` naming the node; `deadline_exceeded`.
/// Threads: any.
class working_set {
public:
  working_set(std::shared_ptr<runtime::client_core> core, std::string name);

  const std::string& name() const noexcept { return name_; }
  /// Returns the name of the node whose data server keeps the set, or its first part, if it is
  /// there at all.
  /// Errors:  `not_found` when no node has a data server.
  result<std::string> node() const;

  /// Brings the samples of files into memory. The files are opened by this process, with its
  /// rights. A set of the same files that is there already is left as it is, however many servers
  /// have it; parts that are missing are preloaded again. Until all samples are there, nobody can
  /// open the set.
  ///
  /// All ranks of a job may call it: clients of one user that preload the same files at once share
  /// the reading, but for files that are read in order (NPZ, HDF5, compressed archives). A file
  /// that one of them finds damaged is read again by the first one, whose options decide. When one
  /// of them fails, is cancelled or dies, the others read its part, or begin again if it was the
  /// first one. A client of another user, with other files, or with nothing left to read, waits. It
  /// waits, also for a data server that is `busy`, until it has heard of no new sample for 24
  /// hours, is cancelled, or the client is gone.
  ///
  /// Files: names, which may have braces (`{a,b}`, `{000..012}`) and patterns (`*`, `?`, `[...]`).
  /// - `.npy`, `.npz`, `.h5`, `.hdf5`: arrays, whose first dimension counts the samples. The files'
  ///   samples follow each other, and have equal dtypes and shapes. `.npy` has one field, "x"; in
  ///   the others each array is a field of its name. Several `.npy` are fields of the same samples
  ///   if all are given as "NAME=FILE", such as "image=images-{0..3}.npy" and
  ///   "label=labels-{0..3}.npy": those at the same place of each field have as many samples. NAME
  ///   has letters, digits, `_`, `-` and `.`; the name of a file that is there is no such pair.
  /// - `.tar`, `.tar.gz`, `.tgz`, `.tar.zst`: archives, in which files of the same name up to the
  ///   first dot are a sample. What comes after the dot is the field: its bytes, which vary; "cls"
  ///   is a number if the texts are. "key" has the names.
  /// - a directory, or other files: each is a sample. The fields are "x", the bytes,
  ///   and "path", which vary, and "label" if `labels` says where it comes from.
  /// Errors:  `invalid_argument` and `corrupt_data` naming the file; `already_exists` when other
  ///          files were preloaded under the name; `busy` after 24 hours without a new sample;
  ///          `no_space` with the bytes asked for and those that are free, or the quota, naming the
  ///          node of a part; `invalid_argument` for more `servers` than there are;
  ///          `permission_denied` naming the owner of parts that are left of another preload of the
  ///          name.
  /// Source:  the loading paper, section 4.3.
  future<preloaded_set> preload(std::vector<std::string> files, preload_options options = {}) const;

  /// Appends the samples of more files to a set that was preloaded. They follow its samples, and
  /// the set is then as one that was preloaded from all files at once: it has the same order. They
  /// lie at the nodes of the set. Who opens the set sees all of them or none; who has it open goes
  /// on with what it has, and opens it again to see more.
  ///
  /// If the set has been preloaded from the same list of files, or they were appended together, it
  /// is left as it is (`existed`), and parts that are missing are brought back; so all ranks of a
  /// job may call it. Some files of such a list are appended again. While another client
  /// fills the set, it waits, as `preload` does. After a cancel that came too late the samples are
  /// there; another append of the files says so.
  /// Returns the whole set.
  /// Errors:  as `preload`; `not_found` when there is no such set; `invalid_argument` for fields
  ///          other than those of the set, for a window, and for labels of folders, whose numbers
  ///          depend on all files; `permission_denied` naming the owner;
  ///          `already_exists` when the set has the samples of the files without others that were
  ///          damaged; `no_space` after `appends_max` appends, too.
  /// Source:  the loading paper, section 4.2 `Append`.
  future<preloaded_set> append(std::vector<std::string> files, append_options options = {}) const;

  /// Returns what the set has.
  /// Errors:  `not_found`.
  future<set_info> describe() const;
  /// Returns what a window has, and how often it has had what readers wanted.
  /// Errors:  `not_found`; `invalid_argument` for a set that has all samples in memory.
  future<window_counts> window() const;
  /// Returns how this process would read the set, by a loader for a device, as "cuda:0"; empty: for
  /// memory of the host. It opens the set for a moment, without files, which counts as a use.
  /// Errors:  `not_found`; for a device those of `set_reader::load_batches`.
  future<set_access> access(std::string device = {}) const;
  /// Opens the set. With files, parts at other nodes than its home may be missing.
  /// Errors:  `not_found`; `invalid_argument` for a window without files.
  future<set_reader> open(open_options options = {}) const;
  /// Hides the set at once. Its memory is free after the last reader. Parts that are left of a set
  /// whose home does not have it are unloaded, too.
  /// Errors:  `not_found`; `permission_denied` naming the owner; when a node of a part does not
  ///          answer, an error that names it, with the set hidden.
  future<void> unload() const;

private:
  future<preloaded_set> begin(
    std::vector<std::string> files, preload_options options, bool appends) const;

  std::shared_ptr<runtime::client_core> core_;
  std::string name_;
};

} // namespace millrace
