// The I/O of a slot: its bytes are lent in the mapping, or in staging memory with direct I/O. Used
// by reservations and readers.
#pragma once

#include <millrace/storage/pmem/lease.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace millrace::storage::pmem {

/// The windows of one slot that is being filled. Calls as of a `reservation`, one at a time.
class slot_writer {
public:
  virtual ~slot_writer() = default;
  virtual std::uint32_t window_count() const noexcept = 0;
  virtual std::uint64_t window_bytes() const noexcept = 0;
  virtual void acquire(std::uint32_t index, memory_block staging, completion<window> done) = 0;
  virtual void commit(std::uint32_t index, completion<void> done) = 0;
  virtual void written_back() {}
  /// Checks that all windows are committed and that none failed. Called once, before `persist`.
  [[nodiscard]] virtual status may_persist() const = 0;
  /// Makes every byte of the slot persistent.
  virtual void persist(std::function<void(status)> done) = 0;
};

std::unique_ptr<slot_writer> make_slot_writer(const leased_slot& slot);

/// The windows of one version that is being read. Calls as of an `opened_model`.
class slot_reader {
public:
  virtual ~slot_reader() = default;
  virtual std::vector<std::vector<wanted>> plan(const std::vector<wanted>& ranges) const = 0;
  virtual std::uint64_t window_bytes() const noexcept = 0;
  virtual void fetch(std::vector<wanted> ranges, memory_block staging, completion<window> done) = 0;
};

std::unique_ptr<slot_reader> make_slot_reader(const leased_slot& slot);

// The two implementations.
std::unique_ptr<slot_writer> make_mapped_writer(const leased_slot& slot);
std::unique_ptr<slot_writer> make_direct_writer(const leased_slot& slot);
std::unique_ptr<slot_reader> make_mapped_reader(const leased_slot& slot);
std::unique_ptr<slot_reader> make_direct_reader(const leased_slot& slot);

} // namespace millrace::storage::pmem
