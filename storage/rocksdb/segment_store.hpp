// The segment files and their space. Reservations allocate extents; I/O jobs write and read them.
#pragma once

#include <millrace/core/rounding.hpp>
#include <millrace/core/status.hpp>
#include <millrace/storage/io/file_io.hpp>
#include <millrace/storage/rocksdb/free_map.hpp>
#include <millrace/storage/rocksdb/index_reserve.hpp>
#include <millrace/storage/space_account.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace millrace::storage::rocksdb {

class segment_store;

/// The space that one version takes.
struct space_need {
  std::uint64_t stream_bytes = 0;
  bool inlined = false;             // in the index; else in extents of segment files
  std::uint64_t metadata_bytes = 0; // without the summary
  bool anyway = false;              // even beyond the capacity

  std::uint64_t extents_bytes() const noexcept {
    return inlined ? 0 : round_up(stream_bytes, extent_unit_bytes);
  }
  /// What is counted against the capacity.
  std::uint64_t charged_bytes() const noexcept {
    return metadata_bytes + (inlined ? stream_bytes : extents_bytes());
  }
};

/// The space of one version: extents of segment files, or only a share of the capacity for a model
/// that is stored inside the index. Destroying the lease frees the space.
class space_lease {
public:
  space_lease() = default;
  space_lease(
    std::shared_ptr<segment_store> store, std::uint64_t charged_bytes, std::vector<extent> extents)
    : store_(std::move(store)), charged_bytes_(charged_bytes), extents_(std::move(extents)) {}
  space_lease(space_lease&& other) noexcept { swap(other); }
  space_lease& operator=(space_lease&& other) noexcept {
    swap(other);
    return *this;
  }
  ~space_lease();

  const std::vector<extent>& extents() const noexcept { return extents_; }
  std::uint64_t charged_bytes() const noexcept { return charged_bytes_; }

  /// Counts more bytes with this lease, even beyond the capacity.
  void charge_more(std::uint64_t size_bytes) noexcept;

  /// Keeps the space taken until the bucket is opened again. For versions that the index may or may
  /// not have.
  void leave_taken() noexcept { store_.reset(); }

private:
  void swap(space_lease& other) noexcept {
    std::swap(store_, other.store_);
    std::swap(charged_bytes_, other.charged_bytes_);
    std::swap(extents_, other.extents_);
  }

  std::shared_ptr<segment_store> store_;
  std::uint64_t charged_bytes_ = 0;
  std::vector<extent> extents_;
};

/// A run of one file that holds a part of a run of a model's stream.
struct file_run {
  std::uint32_t file = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t from = 0; // offset in the run of the stream
};

/// Returns the places of bytes [at, at + length) of a model's stream. No run is longer than
/// `run_max_bytes`.
std::vector<file_run> locate(
  const std::vector<extent>& extents, std::uint64_t at, std::uint64_t length,
  std::uint64_t run_max_bytes);

/// Files of `segment_bytes`, preallocated when they are made. Extents are reused in place:
/// overwriting blocks needs no file system metadata, and is 1.5 times as fast as writing fresh
/// blocks. While the index lacks a part of its reserve, free extents go back to the file system as
/// holes. `take`, `write`, `read`, `sync`, `give_back` and the end of a lease use the disk.
/// Threads: any.
class segment_store : public std::enable_shared_from_this<segment_store> {
public:
  struct options {
    std::string path;
    std::shared_ptr<space_account> account; // what is taken of the capacity
    std::uint64_t segment_bytes = 0;
    bool direct_io = true;
    bool contiguous_staging = false;        // see `memory_source::contiguous`
    std::shared_ptr<index_reserve> reserve; // null: nothing is written
  };

  /// Opens the segments of the directory. All their space is free until it is claimed.
  static result<std::shared_ptr<segment_store>> open(options settings);

  /// Takes the extents of a version found in the index, even beyond the capacity. Errors:
  /// `corrupt_data` when they are missing or taken already.
  result<space_lease> claim(const std::vector<extent>& extents);
  /// Removes segments without claimed extents, except one for reuse.
  [[nodiscard]] status trim();
  /// Makes holes of all free extents, until they are taken again.
  void give_back();
  /// Sets whether a lease that ends has freed its extents for good. False, as at first, while
  /// leases end with the bucket, whose models stay.
  void leases_free(bool for_good) noexcept { leases_free_ = for_good; }

  /// Takes space. Errors: `no_space` with the bytes asked for, the bytes free, and the capacity or
  /// the file system that is full.
  result<space_lease> take(const space_need& need);

  [[nodiscard]] status write(const file_run& run, const std::byte* data);
  [[nodiscard]] status read(const file_run& run, std::byte* data);
  /// Makes the writes to a file durable.
  [[nodiscard]] status sync(std::uint32_t file);

  space_account& account() const noexcept { return *options_.account; }

private:
  friend class space_lease;

  struct segment {
    io::file_handle file;
    std::string path;
    std::uint64_t size_bytes = 0;
    bool has_holes = false;
  };

  explicit segment_store(options settings) : options_(std::move(settings)) {}

  std::byte* buffer_for(const file_run& run) const noexcept;
  [[nodiscard]] status open_existing();
  result<std::vector<extent>> allocate(std::uint64_t size_bytes);
  [[nodiscard]] status leave_free(std::uint64_t size_bytes) const;
  [[nodiscard]] status grow(std::uint64_t missing_bytes);
  [[nodiscard]] status add_segment(std::uint64_t size_bytes);
  result<io::file_handle> open_segment(const std::string& path, int flags) const;
  std::string segment_path(std::uint32_t number) const;
  segment& find(std::uint32_t file);
  void release(std::uint64_t charged_bytes, const std::vector<extent>& extents);
  void punch(const std::vector<extent>& extents);
  [[nodiscard]] status fill_holes(const std::vector<extent>& extents);

  options options_;
  std::mutex growing_; // held while files are made or free extents punched; taken before mutex_
  mutable std::mutex mutex_;
  std::map<std::uint32_t, segment> segments_;
  free_map free_;
  std::uint64_t segments_bytes_ = 0;
  std::atomic<bool> leases_free_ = false;
};

} // namespace millrace::storage::rocksdb
