// The packing and the space of a version found in the index. Used when a bucket is opened or
// verified.
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

/// Takes the space that a record names, and packs its layout. Errors: `corrupt_data` when the
/// record and the segments contradict each other; nothing as large as the record claims is made
/// then.
result<record_space> claim_space(
  segment_store& space, const stored_record& record, const checked_spec& checked);

} // namespace millrace::storage::rocksdb
