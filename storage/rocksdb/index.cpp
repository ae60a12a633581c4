// The index, the only file that calls RocksDB. Called by the bucket, its committer and readers.
#include <millrace/storage/rocksdb/index.hpp>

#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/write_batch.h>

namespace millrace::storage::rocksdb {

namespace {

namespace db = ::rocksdb;

errc code_of(const db::Status& s) noexcept {
  if (s.IsNotFound())
    return errc::not_found;
  if (s.IsCorruption())
    return errc::corrupt_data;
  if (s.IsNoSpace())
    return errc::no_space;
  if (s.IsBusy() || s.IsTryAgain())
    return errc::busy;
  if (s.IsNotSupported())
    return errc::unsupported_version;
  if (s.IsShutdownInProgress())
    return errc::unavailable;
  if (s.IsInvalidArgument())
    return errc::invalid_argument;
  return errc::io_error;
}

status to_status(const db::Status& s, const std::string& doing) {
  return s.ok() ? status{} : status{code_of(s), "{}: {}", doing, s.ToString()};
}

db::Options index_options(bool create) {
  db::Options options;
  options.create_if_missing = create;
  options.paranoid_checks = true;
  // A torn record at the end is a batch whose success was never reported. One in the middle is
  // damage.
  options.wal_recovery_mode = db::WALRecoveryMode::kTolerateCorruptedTailRecords;
  options.write_buffer_size = 16 << 20;
  options.max_background_jobs = 2;
  options.max_open_files = 256;
  options.keep_log_file_num = 2;
  options.max_log_file_size = 1 << 20;
  options.info_log_level = db::InfoLogLevel::WARN_LEVEL;
  return options;
}

class rocksdb_index final : public index {
public:
  rocksdb_index(std::string path, std::unique_ptr<db::DB> database)
    : path_(std::move(path)), db_(std::move(database)) {}

  result<std::optional<std::string>> get(const std::string& key) const override {
    std::string value;
    auto s = db_->Get(db::ReadOptions{}, key, &value);
    if (s.IsNotFound())
      return std::optional<std::string>{};
    if (!s.ok())
      return fail(to_status(s, "reading from " + path_));
    return std::optional{std::move(value)};
  }

  status write(const index_batch& batch) override {
    db::WriteBatch writes;
    for (auto& m : batch) {
      auto s = m.value ? writes.Put(m.key, *m.value) : writes.Delete(m.key);
      if (!s.ok())
        return to_status(s, "preparing a batch for " + path_);
    }
    db::WriteOptions synced;
    synced.sync = true;
    return to_status(db_->Write(synced, &writes), "writing to " + path_);
  }

  status scan(const std::string& prefix, const visitor& visit) const override {
    std::unique_ptr<db::Iterator> at{db_->NewIterator(db::ReadOptions{})};
    for (at->Seek(prefix); at->Valid() && at->key().starts_with(prefix); at->Next())
      if (auto outcome = visit(at->key().ToStringView(), at->value().ToStringView()); !outcome.ok())
        return outcome;
    return to_status(at->status(), "listing " + path_);
  }

private:
  std::string path_;
  std::unique_ptr<db::DB> db_;
};

} // namespace

result<std::unique_ptr<index>> index::open(const std::string& path, bool create) {
  db::DB* opened = nullptr;
  auto s = db::DB::Open(index_options(create), path, &opened);
  if (!s.ok())
    return fail(to_status(s, "opening the index " + path));
  return std::make_unique<rocksdb_index>(path, std::unique_ptr<db::DB>{opened});
}

} // namespace millrace::storage::rocksdb
