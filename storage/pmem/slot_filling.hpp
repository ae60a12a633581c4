// The filling of a slot: what saving a checkpoint and storing a model have in common. Used by
// `saving.cpp` and `storing.cpp`.
#pragma once

#include <millrace/storage/checkpoint_store.hpp>
#include <millrace/storage/gate.hpp>
#include <millrace/storage/pmem/extra_io.hpp>
#include <millrace/storage/pmem/lease.hpp>
#include <millrace/storage/pmem/slot_io.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace millrace::storage::pmem {

/// A slot that is being filled. The reservation and every job under way share it.
class slot_filling : public std::enable_shared_from_this<slot_filling> {
public:
  /// `extra`: of the user's bytes; null for a version without.
  slot_filling(leased_slot slot, gate::ticket ticket, std::unique_ptr<extra_writer> extra = nullptr)
    : lent_(std::move(slot)), ticket_(std::move(ticket)), data_(make_slot_writer(lent_)),
      extra_(std::move(extra)) {}
  virtual ~slot_filling() = default;
  slot_filling(const slot_filling&) = delete;
  slot_filling& operator=(const slot_filling&) = delete;

  /// Returns the error with what was being done before its detail.
  virtual status within(const status& why) const = 0;

  /// Makes the bytes persistent, and then the version visible.
  void publish(std::vector<std::uint64_t> digests, completion<std::uint64_t> done);

  /// After publishing: whether the version completed its step. A version without a step is
  /// complete.
  virtual bool complete() const noexcept { return publishing_; }

  /// The run in which the version is saved. A version without a step belongs to none.
  virtual std::uint64_t run() const noexcept { return 0; }

  bool publishing() const noexcept { return publishing_; }
  /// Must not be called once the slot is publishing.
  slot_writer& data() const noexcept { return *data_; }
  extra_writer* extra() const noexcept { return extra_.get(); }

protected:
  /// Checks the number of digests.
  virtual status check_digests(const std::vector<std::uint64_t>& digests) const = 0;
  /// Stores data that may become persistent together with the bytes.
  virtual status prepare(std::vector<std::uint64_t> digests) = 0;
  /// Makes a version of the bytes, which are persistent, and returns its number.
  virtual result<std::uint64_t> finish() = 0;

  const leased_slot& lent() const noexcept { return lent_; }

private:
  status may_publish(const std::vector<std::uint64_t>& digests);
  void let_go();

  leased_slot lent_;
  gate::ticket ticket_;
  std::unique_ptr<slot_writer> data_;
  std::unique_ptr<extra_writer> extra_;
  std::atomic<bool> publishing_ = false;
};

/// Returns what the caller holds. Destroying it abandons the version.
std::unique_ptr<pending_version> hand_out(std::shared_ptr<slot_filling> f);

} // namespace millrace::storage::pmem
