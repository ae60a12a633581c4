// The lease: keeps a slot unchanged. Held by reservations, readers, and code that may still touch
// lent memory.
#pragma once

#include <millrace/storage/pmem/pool_state.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace millrace::storage::pmem {

/// *Problem*: a lost peer may still copy into a slot, or out of it, long after its save or restore
/// has failed. The slot must not be used again before the last `hold` is destroyed.
class slot_lease {
public:
  slot_lease(
    std::shared_ptr<pool_state> home, std::shared_ptr<model> of, std::shared_ptr<slot_owner> which,
    std::uint64_t number);
  ~slot_lease();
  slot_lease(const slot_lease&) = delete;
  slot_lease& operator=(const slot_lease&) = delete;

private:
  void remove();

  std::shared_ptr<pool_state> home_;
  std::shared_ptr<model> of_;
  std::shared_ptr<slot_owner> which_;
  std::uint64_t number_;
  std::uint64_t changes_; // the slot's count when it was leased
};

/// A leased slot, with what is needed to fill or read it.
struct leased_slot {
  std::shared_ptr<pool_state> home;
  std::shared_ptr<model> of;
  std::shared_ptr<slot_owner> which;
  std::uint64_t number = 0;
  std::shared_ptr<const shard_shape> shape;
  std::vector<data_extent> extents;
  std::shared_ptr<slot_lease> lease;
};

/// Lease a slot for filling, or for reading. Both need the model's lock, unless no other thread
/// knows the owner yet. The lease must be dropped without the lock.
leased_slot lease_to_write(
  std::shared_ptr<pool_state> home, std::shared_ptr<model> of, std::shared_ptr<slot_owner> which,
  std::uint64_t number);
leased_slot lease_to_read(
  std::shared_ptr<pool_state> home, std::shared_ptr<model> of, std::shared_ptr<slot_owner> which,
  std::uint64_t number);

/// Returns how many leases there are in this process; for leak tests.
std::size_t leased_slots() noexcept;

} // namespace millrace::storage::pmem
