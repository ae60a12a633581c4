// Persistence: the layer through which our own bytes reach pool memory, with stores, write-backs
// and fences. Used by everything in storage/pmem; libpmemobj writes its own bytes itself.
#pragma once

#include <millrace/core/planted_defect.hpp>
#include <millrace/core/status.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>

namespace millrace::storage::pmem {

/// Tells a test the order in which bytes become persistent. Any thread; each call runs on the
/// thread that does what it reports, in order. A fence covers the lines of its own thread only.
class persist_observer {
public:
  virtual ~persist_observer() = default;

  /// Called before `source` is copied to `target`, so the old bytes can be read.
  virtual void stores(const void* target, const void* source, std::size_t size_bytes) = 0;
  /// The lines of the range are being written back. They are persistent after the next fence.
  virtual void flushes(const void* target, std::size_t size_bytes) = 0;
  virtual void fences() = 0;

  /// From now on bytes of a peer or a device may arrive in the range without being written back.
  virtual void bulk_begins(const void* target, std::size_t size_bytes) = 0;
  /// The bytes that arrived in the range are being written back, as in `flushes`.
  virtual void bulk_flushes(const void* target, std::size_t size_bytes) = 0;
  /// The mover has reported that it wrote back the bytes of the range.
  virtual void bulk_written_back(const void* target, std::size_t size_bytes) = 0;
  /// No more bytes arrive, and all bytes of the range count as persistent.
  virtual void bulk_persisted(const void* target, std::size_t size_bytes) = 0;

  /// Called before and after an attempt of libpmemobj to change the index atomically. Before it, a
  /// power cut leaves the old state.
  virtual void publishes() = 0;
  virtual void published() = 0;
};

/// Makes the observers of pools that a test does not open itself, but a node does.
class medium_watcher {
public:
  virtual ~medium_watcher() = default;
  /// `pool`: the mapping of the whole file, until the pool is closed.
  virtual std::shared_ptr<persist_observer> opened(
    const std::string& path, std::span<const std::byte> pool) = 0;
};

#if defined(MILLRACE_KILL_POINTS)
/// Set while no pool is opened, by a test that simulates.
inline constinit medium_watcher* simulated_medium = nullptr;
#endif

/// How bytes become persistent on a medium.
enum class write_back : std::uint8_t {
  cache_lines, // the processor writes back cache lines
  msync,       // the kernel writes back pages
};

/// Stores, writes back and fences. Threads: any; `store` and `flush` on disjoint ranges.
class persistence {
public:
  explicit persistence(write_back how, std::shared_ptr<persist_observer> observer = {})
    : how_(how), observer_(std::move(observer)) {}

  write_back how() const noexcept { return how_; }

  void store(void* target, const void* source, std::size_t size_bytes) const {
    if (observer_)
      observer_->stores(target, source, size_bytes);
    if (size_bytes > 0)
      std::memcpy(target, source, size_bytes);
  }

  /// Writes back a range. Errors: `io_error` of msync, after which the range counts as lost.
  [[nodiscard]] status flush(const void* target, std::size_t size_bytes) const;
  void fence() const;
  [[nodiscard]] status persist(const void* target, std::size_t size_bytes) const;

  void bulk_begins(const void* target, std::size_t size_bytes) const {
    if (observer_)
      observer_->bulk_begins(target, size_bytes);
  }
  /// Writes back the bytes that arrived in the range, without a fence, so that many threads may
  /// share a slot.
  [[nodiscard]] status bulk_flush(const void* target, std::size_t size_bytes) const;
  /// Called instead of `bulk_flush` where the mover has written the bytes back.
  void bulk_written_back(const void* target, std::size_t size_bytes) const {
    if (observer_ && !is_planted(defect::published_before_durable))
      observer_->bulk_written_back(target, size_bytes);
  }
  /// Called after one of the two for all parts, and after a fence of each thread that wrote back.
  void bulk_persisted(const void* target, std::size_t size_bytes) const {
    if (observer_)
      observer_->bulk_persisted(target, size_bytes);
  }
  /// Copies within the pool, past the caches where that is faster. The bytes count as bulk.
  void bulk_copy(void* target, const void* source, std::size_t size_bytes) const;

  void publishes() const {
    if (observer_)
      observer_->publishes();
  }
  void published() const {
    if (observer_)
      observer_->published();
  }

private:
  [[nodiscard]] status write_back_range(const void* target, std::size_t size_bytes) const;

  write_back how_;
  std::shared_ptr<persist_observer> observer_;
};

} // namespace millrace::storage::pmem
