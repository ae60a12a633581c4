// What a version found in the index has: its spec, its packing, its bytes in the index, its space.
// Used when a bucket is opened, verified or salvaged.
#pragma once

#include <millrace/storage/io/packing.hpp>
#include <millrace/storage/model_check.hpp>
#include <millrace/storage/rocksdb/segment_store.hpp>
#include <millrace/storage/rocksdb/stored_record.hpp>

namespace millrace::storage::rocksdb {

struct record_space {
  io::packing packing;
  space_lease lease;
};

/// Checks the spec of a record that was found under a name. Errors: `corrupt_data`.
result<checked_spec> check_record(const stored_record& record, std::string_view name);

/// Returns the bytes of an inlined model from the index. Errors: `corrupt_data` when they are not
/// all there.
result<std::string> inlined_bytes(
  const index& db, const stored_record& record, const io::packing& packed);

/// Takes the space that a record names, without its summary, and packs its layout. Errors:
/// `corrupt_data` when the record and the segments contradict each other; nothing as large as the
/// record claims is made then.
result<record_space> claim_space(
  segment_store& space, const stored_record& record, const checked_spec& checked);

} // namespace millrace::storage::rocksdb
