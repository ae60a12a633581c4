// Checks a record against itself, the index and the segments.
#include <millrace/storage/rocksdb/record_space.hpp>

namespace millrace::storage::rocksdb {

result<checked_spec> check_record(const stored_record& record, std::string_view name) {
  auto checked = check_spec(record.model.spec);
  if (!checked || record.model.spec.name != name)
    return fail(errc::corrupt_data, "its record contradicts itself");
  return checked;
}

result<std::string> inlined_bytes(
  const index& db, const stored_record& record, const io::packing& packed) {
  auto needed = io::stream_end(packed);
  if (needed == 0)
    return std::string{};
  auto value = db.get(keys::stream(record.model.spec.name));
  if (!value)
    return fail(value.error());
  auto stream = *value ? decode_stream(record.model.version, **value) : std::nullopt;
  if (!stream || stream->size() < needed)
    return fail(errc::corrupt_data, "its bytes are missing in the index");
  return std::move(*stream);
}

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
    checked.metadata_bytes - checked.summary_bytes +
    (record.inlined ? stream_end(taken.packing) : 0));
  return taken;
}

} // namespace millrace::storage::rocksdb
