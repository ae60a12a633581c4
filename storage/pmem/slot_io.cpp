// The choice between the two implementations, fixed when the pool opens. Called by reservations and
// readers.
#include <millrace/storage/pmem/slot_io.hpp>

namespace millrace::storage::pmem {

std::unique_ptr<slot_writer> make_slot_writer(const leased_slot& slot) {
  return slot.home->direct ? make_direct_writer(slot) : make_mapped_writer(slot);
}

std::unique_ptr<slot_reader> make_slot_reader(const leased_slot& slot) {
  return slot.home->direct ? make_direct_reader(slot) : make_mapped_reader(slot);
}

} // namespace millrace::storage::pmem
