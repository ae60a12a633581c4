// Windows on their way to a disk: laid out in staging memory, filled by the caller, and written.
// Used by the reservations of kinds that write past the page cache.
#pragma once

#include <millrace/storage/io/io_pool.hpp>
#include <millrace/storage/io/packing.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace millrace::storage::io {

/// The windows of one stream. The reservation and every job under way share it, so what the derived
/// class keeps is released only when no job touches it any more.
///
/// Calls as for a `reservation`, one at a time; jobs run on the threads of the pool.
class staged_writer : public std::enable_shared_from_this<staged_writer> {
public:
  using jobs = std::vector<std::function<status()>>;

  virtual ~staged_writer() = default;

  std::uint32_t window_count() const noexcept {
    return static_cast<std::uint32_t>(packed().windows.size());
  }

  /// Returns the size of the largest window.
  std::uint64_t window_bytes() const noexcept;
  void acquire(std::uint32_t index, memory_block staging, completion<window> done);
  void commit(std::uint32_t index, completion<void> done);

  /// Checks that all windows are committed and that none failed. No window is lent afterwards.
  [[nodiscard]] status finish();

  /// Returns the operation as errors name it: "storing model resnet".
  virtual std::string doing() const = 0;

protected:
  virtual const packing& packed() const = 0;
  virtual io_pool& pool() const = 0;
  /// Returns the jobs that together write one window, whose bytes begin at `data`.
  virtual jobs write_jobs(std::uint32_t index, const std::byte* data) = 0;

private:
  enum class phase : std::uint8_t { idle, lent, committing, committed };
  struct entry {
    phase at = phase::idle;
    memory_block memory;
  };

  tl::unexpected<status> misused(std::uint32_t index, const char* how) const;
  bool advance(std::uint32_t index, phase from, phase to);
  void written(std::uint32_t index, const status& outcome);

  std::mutex mutex_;
  std::vector<entry> windows_; // sized at the first call
  bool finished_ = false;
  status failed_; // the error of the first window that could not be written
};

} // namespace millrace::storage::io
