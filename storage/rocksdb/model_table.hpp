// The table of a RocksDB bucket's models in memory. Read by the bucket's calls, changed by the
// committer only.
#pragma once

#include <millrace/core/model.hpp>
#include <millrace/storage/layer_table.hpp>
#include <millrace/storage/recently_used.hpp>
#include <millrace/storage/rocksdb/segment_store.hpp>
#include <millrace/storage/rocksdb/stored_record.hpp>

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace millrace::storage::rocksdb {

/// One published version, with the leases of its space and layers. The table has one copy of the
/// pointer, and every reader another. The leases end with the last copy.
struct stored_version {
  model_summary summary;
  space_lease space;
  layer_lease layers;
  account_lease described; // what the table keeps of it
};
using version_ptr = std::shared_ptr<const stored_version>;
using record_ptr = std::shared_ptr<const stored_record>;

/// The newest version of every model. Does not use the disk. Threads: any.
class model_table {
public:
  /// Returns the newest version of a name, or exactly `version` when it is not 0. Counts as a use.
  /// Errors: `not_found`.
  result<version_ptr> use(const std::string& name, std::uint64_t version);

  /// Returns the newest version of a name; 0 when it has none.
  std::uint64_t newest(const std::string& name) const;
  bool contains(const std::string& name) const { return newest(name) != 0; }

  /// Puts a version in place of an older one, and returns the older one.
  version_ptr put(version_ptr version);
  version_ptr remove(const std::string& name);
  void set_pinned(const std::string& name, bool pinned);

  /// Returns the models to drop, least recently used first, so that at once `size_bytes` become
  /// free, and `described_bytes` of what is kept in memory: those that are not pinned and not open.
  /// Empty when all together are too small. Layers that several models name are not counted.
  std::vector<std::string> victims(
    std::uint64_t size_bytes, std::uint64_t described_bytes, const layer_table& layers) const;

  std::vector<model_summary> list(
    const std::string& prefix, const std::string& after, std::uint32_t count_max) const;
  /// Returns the number of models, see `is_model`.
  std::uint64_t size() const;
  std::uint64_t marks() const;

private:
  struct slot {
    version_ptr version;
    bool pinned = false;
  };

  mutable std::mutex mutex_;
  std::map<std::string, slot> slots_;
  recently_used used_;
};

/// Recently used records, so that opening a model again does not use the disk.
class record_cache {
public:
  explicit record_cache(std::uint64_t size_bytes_max) : size_bytes_max_(size_bytes_max) {}

  /// Null when the cache does not have it.
  record_ptr find(std::uint64_t version);
  void put(record_ptr record, std::uint64_t size_bytes);

private:
  struct entry {
    record_ptr record;
    std::uint64_t size_bytes;
  };
  void remove(std::uint64_t version);

  std::uint64_t size_bytes_max_;
  std::mutex mutex_;
  std::list<entry> order_; // least recently used first
  std::unordered_map<std::uint64_t, std::list<entry>::iterator> places_;
  std::uint64_t size_bytes_ = 0;
};

} // namespace millrace::storage::rocksdb
