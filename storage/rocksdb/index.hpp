// The index: the RocksDB database of a bucket, ordered keys written in atomic synced batches. Used
// by the bucket when it opens, by its committer, and by readers of records.
#pragma once

#include <millrace/core/status.hpp>
#include <millrace/storage/rocksdb/index_reserve.hpp>

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

/// From where a value is read.
enum class read_from {
  anywhere,    // the disk, too
  memory_only, // what RocksDB has in memory; the call uses no disk
};

/// An open database. All calls use the disk, except `get` with `memory_only`.
/// Errors:  RocksDB's, mapped to our codes, naming the path.
/// Threads: any.
class index {
public:
  virtual ~index() = default;

  /// Opens the database. `create`: makes a new one if there is none; otherwise a missing one is an
  /// error. `reserve` may be null: the database does not write then.
  static result<std::unique_ptr<index>> open(
    const std::string& path, bool create, std::shared_ptr<index_reserve> reserve);
  /// Opens the database without changing any file. `write` is refused. Opening it to write deletes
  /// the tables that its manifest does not name. So this is done first, and tells what is lost:
  /// `corrupt_data` when the logs do not go on where the tables end.
  static result<std::unique_ptr<index>> open_to_read(const std::string& path);

  /// Repairs and opens a database. What cannot be read is dropped, so give it a copy.
  static result<std::unique_ptr<index>> repair(const std::string& path);

  /// Returns the value of a key; null when the key has none, or, with `memory_only`, when only the
  /// disk can tell.
  virtual result<std::optional<std::string>> get(
    const std::string& key, read_from from = read_from::anywhere) const = 0;

  /// Writes a batch, which is durable on return. After a failure the index may have the batch or
  /// not, until it is opened again. A later call does that once there is space.
  [[nodiscard]] virtual status write(const index_batch& batch) = 0;

  using visitor = std::function<status(std::string_view key, std::string_view value)>;
  /// Calls `visit` for every key with the prefix, in order, and stops at the first error.
  [[nodiscard]] virtual status scan(const std::string& prefix, const visitor& visit) const = 0;

  /// Moves what the log has into sorted files, so that the log is empty.
  [[nodiscard]] virtual status settle() = 0;

  /// Returns the number of the newest change. It never becomes smaller while all changes are there.
  virtual std::uint64_t last_change() const = 0;
};

} // namespace millrace::storage::rocksdb
