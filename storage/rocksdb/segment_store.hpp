// Segment files and the space in them. Asked for extents by reservations; written and read by I/O
// jobs.
#pragma once

#include <millrace/core/status.hpp>
#include <millrace/storage/io/file_io.hpp>
#include <millrace/storage/rocksdb/free_map.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace millrace::storage::rocksdb {

class segment_store;

/// Space of one version: extents of segment files, or only a share of the capacity (what rests
/// inside the index). Giving it up makes the space free for others.
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

  /// Keeps the space taken until the bucket opens again: for versions of which nobody knows whether
  /// the index has them.
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

/// A run of bytes of one file that belongs to a run of a model's stream.
struct file_run {
  std::uint32_t file = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t from = 0; // bytes after the beginning of the run asked for
};

/// Where the bytes [at, at + length) of a model's stream lie; no run longer than `run_max_bytes`.
std::vector<file_run> locate(
  const std::vector<extent>& extents, std::uint64_t at, std::uint64_t length,
  std::uint64_t run_max_bytes);

/// Files of `segment_bytes`, preallocated when made. Extents are reused as they are: overwriting
/// blocks that were written before needs no metadata, and is half as fast again as writing fresh ones.
/// Threads: any. `allocate`, `write`, `read`, `sync` use the disk.
class segment_store : public std::enable_shared_from_this<segment_store> {
public:
  struct options {
    std::string path;
    std::uint64_t capacity_bytes = 0;
    std::uint64_t segment_bytes = 0;
    bool direct_io = true;
    bool contiguous_staging = false; // see `memory_source::contiguous`
  };

  /// Opens the segments that are there; all their space is free until it is claimed.
  static result<std::shared_ptr<segment_store>> open(options settings);

  /// For versions found in the index. Errors: `corrupt_data` when space is missing or claimed
  /// twice.
  result<space_lease> claim(std::vector<extent> extents);
  /// Removes segments in which nothing is claimed, keeping one for reuse.
  [[nodiscard]] status trim();

  /// Whether so many bytes fit when nothing else is there. Errors: those of `allocate`.
  [[nodiscard]] status check_possible(std::uint64_t size_bytes) const;
  /// Errors: `no_space` with what was asked for, what is free, and the capacity.
  result<space_lease> allocate(std::uint64_t size_bytes);
  /// Takes a share of the capacity and no extents.
  result<space_lease> charge(std::uint64_t size_bytes);
  /// Counts space found in the index at open, whatever the capacity is now.
  space_lease claim_charge(std::uint64_t size_bytes);

  [[nodiscard]] status write(const file_run& run, const std::byte* data);
  [[nodiscard]] status read(const file_run& run, std::byte* data);
  /// Makes what was written to a file durable.
  [[nodiscard]] status sync(std::uint32_t file);

  std::uint64_t capacity_bytes() const noexcept { return options_.capacity_bytes; }
  std::uint64_t used_bytes() const;

private:
  friend class space_lease;

  struct segment {
    io::file_handle file;
    std::string path;
    std::uint64_t size_bytes = 0;
  };

  explicit segment_store(options settings) : options_(std::move(settings)) {}

  std::byte* buffer_for(const file_run& run) const noexcept;
  [[nodiscard]] status open_existing();
  std::uint64_t free_bytes() const;
  status full(std::uint64_t asked_bytes) const;
  [[nodiscard]] status take_share(std::uint64_t size_bytes);
  [[nodiscard]] status grow(std::uint64_t missing_bytes);
  [[nodiscard]] status add_segment(std::uint64_t size_bytes);
  result<io::file_handle> open_segment(const std::string& path, int flags) const;
  std::string segment_path(std::uint32_t number) const;
  const segment& find(std::uint32_t file) const;
  void release(std::uint64_t charged_bytes, const std::vector<extent>& extents);

  options options_;
  std::mutex growing_; // held while files are made; taken before mutex_
  mutable std::mutex mutex_;
  std::map<std::uint32_t, segment> segments_;
  free_map free_;
  std::uint64_t used_bytes_ = 0;
  std::uint64_t segments_bytes_ = 0;
};

} // namespace millrace::storage::rocksdb
