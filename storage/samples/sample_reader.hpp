// Files whose samples can be read by position. Opened and read by the preload of a working set.
#pragma once

#include <millrace/core/status.hpp>
#include <millrace/core/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace millrace::storage::samples {

/// One field of the samples of files.
struct read_field {
  /// Name, dtype and shape of one sample. The first extent of a field that varies is 0.
  tensor_desc sample;
  bool varies = false; // the samples differ in their first dimension
  /// So many samples, from a multiple of it on, are best read together: those of a chunk.
  std::uint64_t together = 1;
};

/// A file that cannot be read, and why.
struct damaged_file {
  std::string path; // absolute
  status why;
};

/// Returns whether an error says that a file is damaged or cannot be read: false for what this
/// process lacks, as descriptors or memory, and for what passes, as a server of files that does not
/// answer.
bool is_damage(const status& why);

/// Files as samples that have the same fields.
/// Threads: any, several at once. `read` blocks the caller.
class sample_reader {
public:
  virtual ~sample_reader() = default;

  virtual std::uint64_t samples() const noexcept = 0;

  virtual const std::vector<read_field>& fields() const noexcept = 0;

  /// Returns the bytes of each sample of a field that varies; nothing for other fields. Their sum,
  /// each rounded up to 64, has at most 63 bits.
  virtual std::span<const std::uint64_t> lengths(std::size_t) const noexcept { return {}; }

  /// Returns a digest of what the files were when they were opened: their absolute paths without
  /// links, sizes, modification times and inodes; and for files as samples, their names and what
  /// their labels come from. Files that are left out count, too.
  std::uint64_t source() const noexcept { return source_; }
  void set_source(std::uint64_t source) noexcept { source_ = source; }

  /// Returns the file that has a sample, as a damaged file is named.
  virtual std::string path_of(std::uint64_t) const { return {}; }

  /// Returns true when reading takes much more time of a core than a copy does.
  virtual bool computes() const noexcept { return false; }

  /// Returns true when reading in the order of fields and samples is much cheaper than any other
  /// order.
  virtual bool prefers_order() const noexcept { return false; }

  /// Reads the samples [first, first + count) of a field, one after another: dense, in row-major
  /// order, little-endian. `into` has exactly their bytes.
  ///
  /// Errors:  `invalid_argument` for a field or samples that are not there, or another size of
  ///          `into`; `corrupt_data` naming a file that ends early, or that is not the one that was
  ///          opened or has changed since; those of the system. `into` has any bytes after that.
  [[nodiscard]] status read(
    std::size_t field, std::uint64_t first, std::uint64_t count, std::span<std::byte> into);

  /// Reads a part of one sample, from `offset` on, which is a multiple of 64. Errors: as `read`.
  [[nodiscard]] status read_part(
    std::size_t field, std::uint64_t sample, std::uint64_t offset, std::span<std::byte> into);

  /// Returns the files that a read has found damaged or unreadable, each once.
  std::vector<damaged_file> damaged() const;

protected:
  /// Reads a range of another reader, for one that stands on it. As `read_range`.
  static status read_range_of(
    sample_reader& other, std::size_t field, std::uint64_t first, std::uint64_t offset,
    std::span<std::byte> into) {
    return other.read_range(field, first, offset, into);
  }

  /// Reads bytes of a field whose samples follow each other densely, from `offset` in the sample
  /// `first` on. They are there, and `offset` is less than the sample's bytes.
  virtual status read_range(
    std::size_t field, std::uint64_t first, std::uint64_t offset, std::span<std::byte> into) = 0;

  /// Notes that a file is damaged, if the error says so. Returns the error.
  status blame(const std::string& path, status why);
  /// Where a read of another reader has failed, on which this one stands, notes the files that the
  /// other one has found damaged. Returns the outcome.
  status blame_as(const sample_reader& other, status outcome);
  /// Returns why a file is damaged; ok as long as no read has found it so.
  status blamed(const std::string& path) const;

private:
  // The bytes of some samples. They are there.
  std::uint64_t bytes_of(std::size_t field, std::uint64_t first, std::uint64_t count) const;
  status check(std::size_t field, std::uint64_t first, std::uint64_t count) const;

  std::uint64_t source_ = 0;
  mutable std::mutex damage_mutex_;
  std::vector<damaged_file> damaged_;
  std::unordered_map<std::string, std::size_t> damaged_at_; // by path
};

/// What files are read as.
enum class sample_kind : std::uint8_t {
  automatic, // arrays or archives if the names end so, or else files; a directory: files
  arrays,    // a directory: all files in it whose names end as those of arrays
  files      // each file is a sample
};

/// The number of the first folder in a file's path, by name, among those of all files.
inline constexpr std::string_view labels_of_folders = "folders";

struct sample_options {
  sample_kind kind = sample_kind::automatic;
  std::vector<std::string> fields = {}; // to take, in this order; empty: all
  /// Where labels of files come from: `labels_of_folders`, or the path of a CSV file with lines
  /// "path,label"; empty: there are none.
  std::string labels = {};
  /// Fields that are images, and as what they are decoded, see `open_decoded`.
  std::vector<std::string> decode = {};
  std::uint64_t image_pixels_max = std::uint64_t{1} << 26;
  bool skips_damaged = false; // leave out a file that is damaged or cannot be read
  /// Asked for each file: true ends the opening with `cancelled`. May be null.
  std::function<bool()> is_stopped = nullptr;
};

/// Opens files of one format, which is that of their endings, as samples that follow each other in
/// the order of the paths. `.npy`: arrays of one field; of several, if all are given as
/// `NAME=FILE`, see `open_field_files`. `.npz`, `.h5`, `.hdf5`: each array is a field. `.tar` and
/// compressed ones: files of one name are a sample, see `open_tars`. Files of other endings, or the
/// files of a directory: each is a sample, see `open_files`. Names may have braces and patterns,
/// see `expand_names`.
///
/// `left_out` has files that are left out, by their absolute paths; those that are left out here
/// are appended. Files of other fields are never left out.
/// Errors:  `invalid_argument` without a path; naming files that do not belong together, a field
///          that is not there; those of the format, see `open_npy`, `open_field_files`,
///          `open_arrays`, `open_files`.
/// Threads: blocks the caller.
result<std::unique_ptr<sample_reader>> open_samples(
  const std::vector<std::string>& paths, const sample_options& options = {},
  std::vector<damaged_file>* left_out = nullptr);

} // namespace millrace::storage::samples
