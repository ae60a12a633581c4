// The one layer through which our own bytes reach pool memory: stores, write-backs, fences. Used by everything in
// storage/pmem; libpmemobj does its own.
#pragma once

#include <millrace/core/status.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

namespace millrace::storage::pmem {

/// What a test sees of the order in which bytes become persistent. Any thread; the calls of one thread in order, each on
/// the thread that does what it tells: a fence is one of that thread's lines alone.
class persist_observer {
public:
  virtual ~persist_observer() = default;

  /// Called before `source` is copied to `target`: what the bytes were is still there.
  virtual void stores(const void* target, const void* source, std::size_t size_bytes) = 0;
  /// The lines of the range are on their way to the persistence domain; there for certain after the next fence.
  virtual void flushes(const void* target, std::size_t size_bytes) = 0;
  virtual void fences() = 0;

  /// From now on foreign bytes (copied by a peer, or by a device) may arrive in the range, unflushed.
  virtual void bulk_begins(const void* target, std::size_t size_bytes) = 0;
  /// What arrived in the range is on its way, as of `flushes`.
  virtual void bulk_flushes(const void* target, std::size_t size_bytes) = 0;
  /// Whoever moved the bytes of the range has written them back, and has said so.
  virtual void bulk_written_back(const void* target, std::size_t size_bytes) = 0;
  /// Nothing arrives any more, and all bytes of the range are taken for persistent.
  virtual void bulk_persisted(const void* target, std::size_t size_bytes) = 0;

  /// Around one atomic change of the index by libpmemobj, or an attempt: before, the old state is what a power cut leaves.
  virtual void publishes() = 0;
  virtual void published() = 0;
};

/// How bytes become persistent on a medium.
enum class write_back : std::uint8_t {
  cache_lines, // written back by the processor
  msync,       // by the kernel
};

/// Threads: any; `store` and `flush` on disjoint ranges.
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

  /// Errors: `io_error` of msync, after which the range must be taken as lost.
  [[nodiscard]] status flush(const void* target, std::size_t size_bytes) const;
  void fence() const;
  [[nodiscard]] status persist(const void* target, std::size_t size_bytes) const;

  void bulk_begins(const void* target, std::size_t size_bytes) const {
    if (observer_)
      observer_->bulk_begins(target, size_bytes);
  }
  /// Writes back what arrived in the range, with no fence: many threads may share a slot.
  [[nodiscard]] status bulk_flush(const void* target, std::size_t size_bytes) const;
  /// Instead of it, where the mover has done so.
  void bulk_written_back(const void* target, std::size_t size_bytes) const {
    if (observer_)
      observer_->bulk_written_back(target, size_bytes);
  }
  /// After either for all its parts, and a fence by each thread that flushed.
  void bulk_persisted(const void* target, std::size_t size_bytes) const {
    if (observer_)
      observer_->bulk_persisted(target, size_bytes);
  }
  /// Copies within the pool, past the caches where the medium likes that. Counts as bulk.
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
