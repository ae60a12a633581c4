// Handles of libhdf5, its errors as statuses, and its types for our dtypes. Used by the reader and
// writer of HDF5.
#pragma once

#include <millrace/storage/archive/archive.hpp>

#include <hdf5.h>

#include <functional>
#include <mutex>
#include <utility>

namespace millrace::storage::archive {

/// Owns an identifier of libhdf5 and closes it.
class hdf5_id {
public:
  using closer = herr_t (*)(hid_t);

  hdf5_id() = default;
  hdf5_id(hid_t id, closer close) noexcept : id_(id), close_(close) {}
  hdf5_id(hdf5_id&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  hdf5_id& operator=(hdf5_id&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~hdf5_id() { release(); }

  bool ok() const noexcept { return id_ >= 0; }
  hid_t get() const noexcept { return id_; }
  /// Closes it now. Returns false when that fails, as for a file whose last bytes cannot be
  /// written.
  [[nodiscard]] bool close() { return close_(std::exchange(id_, -1)) >= 0; }

private:
  void release() noexcept;

  hid_t id_ = -1;
  closer close_ = nullptr;
};

/// While it exists, libhdf5 prints no errors and loads no filters from the disk. If libhdf5 was
/// built for one thread, no other thread of the process has one of these. Every call of libhdf5 is
/// made while one exists. The errors of the calls are forgotten with it.
class hdf5_quiet {
public:
  hdf5_quiet();
  ~hdf5_quiet();
  hdf5_quiet(const hdf5_quiet&) = delete;
  hdf5_quiet& operator=(const hdf5_quiet&) = delete;

private:
  std::unique_lock<std::recursive_mutex> alone_; // a source may be read while a file is written
  H5E_auto2_t print_ = nullptr;
  void* argument_ = nullptr;
};

/// Returns the last error of libhdf5, or the operating system's error if there is one.
status hdf5_status(const std::string& doing, errc otherwise = errc::corrupt_data);

/// Returns the little-endian type of a dtype, as h5py has it: booleans are an enumeration, complex
/// numbers a pair. A dtype that HDF5 lacks has the type of `numpy_type`.
hdf5_id hdf5_type_of(dtype type);

/// Returns the dtype of a type in a file, in either byte order; null for other types.
std::optional<dtype> dtype_of_hdf5(hid_t type);

/// Writes a text as an attribute; false on failure.
bool write_text_attribute(hid_t object, const std::string& name, const std::string& text);
/// Reads a text attribute. Null when there is none, or when it is not a text.
std::optional<std::string> read_text_attribute(hid_t object, const std::string& name);

/// Cuts elements [first, first + count) in C order into boxes. Stops, and returns false, when
/// `each(start, extents)` returns false.
bool for_each_box(
  const std::vector<std::uint64_t>& shape, std::uint64_t first, std::uint64_t count,
  const std::function<bool(const std::vector<hsize_t>&, const std::vector<hsize_t>&)>& each);

/// A box of a dataset, with as many elements in dense memory.
struct hdf5_box {
  hdf5_id in_memory;
  hdf5_id in_file;
  hsize_t count = 0;
};

/// Selects the box of a dataset that begins at `start`; a scalar has an empty `start`. Null on
/// failure.
std::optional<hdf5_box> select_box(
  hid_t dataset, const std::vector<hsize_t>& start, const std::vector<hsize_t>& extents);

/// The names of the attributes that mark our own files and their dtypes.
inline constexpr auto hdf5_format_attribute = "millrace.format";
inline constexpr auto hdf5_dtype_attribute = "millrace.dtype";
inline constexpr auto hdf5_shape_attribute = "millrace.shape";

} // namespace millrace::storage::archive
