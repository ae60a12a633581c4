// The index: the RocksDB database of a bucket, ordered keys written in atomic synced batches. Used
// by the bucket when it opens, by its committer, and by readers of records.
#pragma once

#include <millrace/core/status.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::storage::rocksdb {

/// A key and its new value. Without a value the key is removed.
struct mutation {
  std::string key;
  std::optional<std::string> value;
};
/// Mutations that are applied in order, all or none.
using index_batch = std::vector<mutation>;

/// An open database. All calls use the disk.
/// Errors:  RocksDB's, mapped to our codes, naming the path.
/// Threads: any.
class index {
public:
  virtual ~index() = default;

  /// Opens the database. `create`: makes a new one if there is none; otherwise a missing one is an
  /// error.
  static result<std::unique_ptr<index>> open(const std::string& path, bool create);

  virtual result<std::optional<std::string>> get(const std::string& key) const = 0;

  /// Writes a batch, which is durable on return.
  [[nodiscard]] virtual status write(const index_batch& batch) = 0;

  using visitor = std::function<status(std::string_view key, std::string_view value)>;
  /// Calls `visit` for every key with the prefix, in order, and stops at the first error.
  [[nodiscard]] virtual status scan(const std::string& prefix, const visitor& visit) const = 0;
};

} // namespace millrace::storage::rocksdb
