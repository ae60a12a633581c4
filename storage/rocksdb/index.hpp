// The RocksDB database inside a bucket: ordered keys, written in atomic synced batches.
// Used by the bucket when it opens, by its committer, and by readers of records.
#pragma once

#include <millrace/core/status.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::storage::rocksdb {

/// A key and its new value, or no value: the key goes.
struct mutation {
  std::string key;
  std::optional<std::string> value;
};
/// Applied in order, all or none.
using index_batch = std::vector<mutation>;

/// Errors of all calls: RocksDB's, mapped to ours, naming the path. Threads: any. All use the disk.
class index {
public:
  virtual ~index() = default;

  /// `create`: make a new database where there is none; without it a missing one is an error.
  static result<std::unique_ptr<index>> open(const std::string& path, bool create);

  virtual result<std::optional<std::string>> get(const std::string& key) const = 0;

  /// Durable when it returns.
  [[nodiscard]] virtual status write(const index_batch& batch) = 0;

  using visitor = std::function<status(std::string_view key, std::string_view value)>;
  /// Calls `visit` for every key with the prefix, in order, until it returns an error.
  [[nodiscard]] virtual status scan(const std::string& prefix, const visitor& visit) const = 0;
};

} // namespace millrace::storage::rocksdb
