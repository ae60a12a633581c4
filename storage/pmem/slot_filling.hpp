// A slot on its way to a version, whatever the version is of: what saving a checkpoint and storing a model share.
// Used by `fill.cpp` and `store.cpp`.
#pragma once

#include <millrace/storage/checkpoint_store.hpp>
#include <millrace/storage/gate.hpp>
#include <millrace/storage/pmem/lease.hpp>
#include <millrace/storage/pmem/slot_io.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace millrace::storage::pmem {

/// The reservation and every job under way share it.
class slot_filling : public std::enable_shared_from_this<slot_filling> {
public:
  slot_filling(leased_slot slot, gate::ticket ticket)
    : lent_(std::move(slot)), ticket_(std::move(ticket)), data_(make_slot_writer(lent_)) {}
  virtual ~slot_filling() = default;
  slot_filling(const slot_filling&) = delete;
  slot_filling& operator=(const slot_filling&) = delete;

  /// What was being done when it failed.
  virtual status within(const status& why) const = 0;

  /// Makes the bytes persistent, and then the version visible.
  void publish(std::vector<std::uint64_t> digests, completion<std::uint64_t> done);

  /// Once it is published: whether all that belongs to it is there. What stands alone is complete.
  virtual bool complete() const noexcept { return publishing_; }

  bool publishing() const noexcept { return publishing_; }
  /// Not to be asked for once it is publishing.
  slot_writer& data() const noexcept { return *data_; }

protected:
  /// Whether there are as many as there must be.
  virtual status check_digests(const std::vector<std::uint64_t>& digests) const = 0;
  /// Stores what may become persistent together with the bytes.
  virtual status prepare(std::vector<std::uint64_t> digests) = 0;
  /// The bytes are persistent: makes them a version; its number.
  virtual result<std::uint64_t> finish() = 0;

  const leased_slot& lent() const noexcept { return lent_; }

private:
  status may_publish(const std::vector<std::uint64_t>& digests);
  void let_go();

  leased_slot lent_;
  gate::ticket ticket_;
  std::unique_ptr<slot_writer> data_;
  std::atomic<bool> publishing_ = false;
};

/// What the caller is given. Dropping it abandons.
std::unique_ptr<pending_version> hand_out(std::shared_ptr<slot_filling> f);

} // namespace millrace::storage::pmem
