// Calls of libpmem for cache lines or msync; the choice is ours, not libpmem's. Called by
// everything in storage/pmem.
#include <millrace/storage/pmem/medium/persist.hpp>

#include <libpmem.h>

#include <cerrno>

namespace millrace::storage::pmem {

status persistence::flush(const void* target, std::size_t size_bytes) const {
  auto outcome = write_back_range(target, size_bytes);
  if (observer_ && outcome.ok())
    observer_->flushes(target, size_bytes);
  return outcome;
}

void persistence::fence() const {
  if (how_ == write_back::cache_lines)
    ::pmem_drain();
  if (observer_)
    observer_->fences();
}

status persistence::persist(const void* target, std::size_t size_bytes) const {
  auto outcome = flush(target, size_bytes);
  if (outcome.ok())
    fence();
  return outcome;
}

status persistence::bulk_flush(const void* target, std::size_t size_bytes) const {
  if (is_planted(defect::published_before_durable))
    return {};
  auto outcome = write_back_range(target, size_bytes);
  if (observer_ && outcome.ok())
    observer_->bulk_flushes(target, size_bytes);
  return outcome;
}

void persistence::bulk_copy(void* target, const void* source, std::size_t size_bytes) const {
  auto flags = how_ == write_back::cache_lines ? PMEM_F_MEM_NODRAIN | PMEM_F_MEM_NONTEMPORAL
                                               : PMEM_F_MEM_NOFLUSH;
  ::pmem_memcpy(target, source, size_bytes, flags);
}

status persistence::write_back_range(const void* target, std::size_t size_bytes) const {
  if (size_bytes == 0)
    return {};
  if (how_ == write_back::cache_lines) {
    ::pmem_flush(target, size_bytes);
    return {};
  }
  if (::pmem_msync(target, size_bytes) != 0)
    return status_from_errno(errno, fmt::format("writing {} bytes of a pool", size_bytes));
  return {};
}

} // namespace millrace::storage::pmem
