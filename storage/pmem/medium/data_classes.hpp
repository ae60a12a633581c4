// The classes of a heap: the sizes in which objects of data lie side by side. Used by the heap.
#pragma once

#include <cstdint>
#include <vector>

namespace millrace::storage::pmem {

/// Objects of one size. Runs of `chunks` chunks hold `units` of them and nothing else.
struct data_class {
  std::uint64_t unit_bytes = 0; // with the header of the object
  std::uint64_t chunks = 0;
  std::uint64_t units = 0;
};

/// Objects of fewer bytes are left to the classes of libpmemobj, and larger ones than
/// `data_class_max_bytes` get chunks of their own.
inline constexpr std::uint64_t data_class_min_bytes = 64 * 1024;
inline constexpr std::uint64_t data_class_max_bytes = 9 * 256 * 1024;

/// Returns the classes by size.
///
/// *Problem*: libpmemobj puts objects of up to 2.3 MiB side by side into runs of 4 MiB, of which
/// one of 1.1 MiB leaves a quarter unused and one of 2.3 MiB nearly half.
const std::vector<data_class>& data_classes();

/// Returns the classes of tables by size.
///
/// *Problem*: every change of a pool replaces its table. In a full pool the new one must find a
/// place, or nothing could be erased; and libpmemobj keeps a run of every class that was ever used.
/// A run has two units, for the table and the next one, and a class is twice as large as the one
/// before.
const std::vector<data_class>& table_classes();

/// Returns the class of what a full pool must take, too: marks, and the provider's own records.
///
/// *Problem*: libpmemobj has no room for a small object when all chunks are taken, even after large
/// ones were freed. One run of this class is there from the time at which a pool opens.
const data_class& spare_class();

} // namespace millrace::storage::pmem
