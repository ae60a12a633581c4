// The reserve: space of the file system that is kept for the index. The index takes from it when
// the file system is full; the engine fills it again.
#pragma once

#include <millrace/storage/io/file_io.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace millrace::storage::rocksdb {

/// *Problem*: removing a model needs space, since the index writes that the model is gone. On a
/// full file system nothing could be removed, and the index could not even be opened. So a file of
/// the bucket holds space that no other file can take, and is made smaller when the index needs it.
/// Threads: any.
class index_reserve {
public:
  /// Opens the file `reserve` of a bucket's directory as it is; `restore` fills it.
  static result<std::shared_ptr<index_reserve>> open(
    const std::string& directory, std::uint64_t size_bytes);

  /// Gives at least `size_bytes` to the file system, or all that is left. Returns false when
  /// nothing is left.
  bool release(std::uint64_t size_bytes) noexcept;

  /// Takes from the file system what is missing, as far as there is some. Returns true when nothing
  /// is missing any more.
  bool restore() noexcept;

  bool whole() const noexcept { return held_bytes_ == size_bytes_; }
  std::uint64_t size_bytes() const noexcept { return size_bytes_; }

  /// Returns the bytes that the index could still write: those that are free and those held here.
  result<std::uint64_t> available_bytes() const;

private:
  index_reserve(io::file_handle file, std::string path, std::uint64_t size_bytes)
    : file_(std::move(file)), path_(std::move(path)), size_bytes_(size_bytes) {}

  io::file_handle file_;
  std::string path_;
  std::uint64_t size_bytes_;
  std::mutex mutex_; // held while the size of the file changes
  std::atomic<std::uint64_t> held_bytes_ = 0;
};

} // namespace millrace::storage::rocksdb
