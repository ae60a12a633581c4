// Checks a record against the segments. Called by the engine and by `verify`.
#include <millrace/storage/rocksdb/record_space.hpp>

namespace millrace::storage::rocksdb {

result<record_space> claim_space(
  segment_store& space, const stored_record& record, const checked_spec& checked) {
  if (record.inlined && (checked.size_bytes > record.window_bytes || !record.extents.empty()))
    return fail(errc::corrupt_data, "its record contradicts itself");
  auto lease = space.claim(record.extents);
  if (!lease)
    return fail(lease.error());
  auto too_small = [] {
    return fail(errc::corrupt_data, "its extents are too small for its tensors");
  };
  // The extents exist, so a layout that fits into them is no larger than the disk.
  if (!record.inlined && lease->charged_bytes() < checked.size_bytes)
    return too_small();
  record_space taken{io::pack(checked.tensor_bytes, record.window_bytes), std::move(*lease)};
  if (!record.inlined && taken.lease.charged_bytes() < taken.packing.stream_bytes)
    return too_small();
  taken.lease.charge_more(
    checked.metadata_bytes + (record.inlined ? stream_end(taken.packing) : 0));
  return taken;
}

} // namespace millrace::storage::rocksdb
