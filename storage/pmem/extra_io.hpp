// The user's bytes of a version, in the slot's object: lent in the mapping, or through staging
// memory where the pool uses direct I/O. Used by reservations and readers.
#pragma once

#include <millrace/storage/pmem/lease.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace millrace::storage::pmem {

/// The windows of the user's bytes of a slot that is being filled. A window that is committed is as
/// persistent as committed windows of the slot's own.
class extra_writer : public window_space {
public:
  /// Checks that all windows are committed. Called before the slot is made persistent.
  [[nodiscard]] virtual status may_persist() const = 0;
};

std::unique_ptr<extra_writer> make_extra_writer(const leased_slot& slot, const pmem::slot& version);

/// The user's bytes of a version that is being read. Calls as of an `opened_model`, for one tensor.
class extra_reader {
public:
  extra_reader(leased_slot slot, const pmem::slot& version);

  std::uint64_t size_bytes() const noexcept { return size_bytes_; }
  /// Adds the windows of a range to a plan.
  void plan(const wanted& range, std::vector<std::vector<wanted>>& windows) const;
  /// Lends one window of the plan.
  void fetch(const wanted& range, memory_block staging, completion<window> done) const;

private:
  leased_slot slot_;
  std::uint64_t at_;
  std::uint64_t size_bytes_;
};

} // namespace millrace::storage::pmem
