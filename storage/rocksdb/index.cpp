// The index, the only file that calls RocksDB's database. Called by the bucket, its committer and
// readers.
#include <millrace/core/background_thread.hpp>
#include <millrace/core/log.hpp>
#include <millrace/core/planted_defect.hpp>
#include <millrace/core/simulated_machine.hpp>
#include <millrace/storage/io/file_io.hpp>
#include <millrace/storage/rocksdb/index.hpp>
#include <millrace/storage/rocksdb/index_files.hpp>
#include <millrace/storage/rocksdb/index_jobs.hpp>
#include <millrace/storage/rocksdb/index_log.hpp>
#include <millrace/storage/rocksdb/log_check.hpp>
#include <millrace/storage/rocksdb/rocksdb_options.hpp>

#include <rocksdb/db.h>
#include <rocksdb/listener.h>
#include <rocksdb/options.h>
#include <rocksdb/write_batch.h>

#include <atomic>
#include <shared_mutex>

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

// Learns that RocksDB has stopped taking writes for want of space. It would take them again by
// itself, but 7.8 then ends the process when the failed write was the first since the last flush.
class stop_listener final : public db::EventListener {
public:
  void OnBackgroundError(db::BackgroundErrorReason, db::Status* error) override {
    if (error->IsNoSpace() && error->severity() >= db::Status::Severity::kHardError)
      stopped = true;
  }
  void OnErrorRecoveryBegin(db::BackgroundErrorReason, db::Status error, bool* automatic) override {
    *automatic = error.severity() < db::Status::Severity::kHardError;
  }

  std::atomic<bool> stopped = false;
};

db::Options index_options(const std::string& path) {
  db::Options options;
  options.paranoid_checks = true;
  // What cannot be read at the end is a batch whose success was never reported: `check_logs` has
  // found no damage before it.
  options.wal_recovery_mode = db::WALRecoveryMode::kPointInTimeRecovery;
  options.write_buffer_size = write_buffer_bytes;
  options.max_write_buffer_number = write_buffers;
  options.max_background_jobs = 2;
  options.max_open_files = 256;
  options.max_bgerror_resume_count = 0; // see `stop_listener`
  options.info_log = make_index_log(path);
  return options;
}

// On a simulated machine files are small, so that few changes make RocksDB flush and compact them.
void make_small(db::Options& options) {
  options.write_buffer_size = 64u << 10;
  options.allow_fallocate = false;
  options.max_file_opening_threads = 1;
}

class rocksdb_index final : public index {
public:
  rocksdb_index(std::string path, std::shared_ptr<index_reserve> reserve)
    : path_(std::move(path)), reserve_(std::move(reserve)) {
    if (!reserve_)
      return;
    env_ = make_index_env(reserve_);
    if (!simulated())
      return;
    auto own = std::make_unique<index_jobs>(std::move(env_));
    jobs_ = own.get();
    env_ = std::move(own);
  }

  status open(bool create) {
    if (auto logs = check_logs(path_); !logs)
      return logs.error().within("opening the index " + path_);
    auto options = index_options(path_);
    options.create_if_missing = create;
    options.env = env_.get();
    if (jobs_)
      make_small(options);
    options.listeners.push_back(listener_);
    listener_->stopped = false;
    db::DB* opened = nullptr;
    signals_blocked for_its_threads;
    auto s = db::DB::Open(options, path_, &opened);
    db_.reset(opened);
    if (!s.ok())
      return to_status(s, "opening the index " + path_);
    run_jobs();
    written_ = db_->GetLatestSequenceNumber();
    // Logs that were removed must not come back beside later changes.
    return io::sync_directory(path_);
  }

  status open_to_read() {
    auto first_logged = check_logs(path_);
    if (!first_logged)
      return first_logged.error().within("opening the index " + path_);
    // The logs go on where the tables end, or repeat some of it. There are none in the directory
    // above.
    if (*first_logged > 0) {
      if (auto bad = open_to_read(path_ + "/.."); !bad.ok())
        return bad;
      auto tables_end = db_->GetLatestSequenceNumber();
      if (*first_logged > tables_end + 1)
        return {
          errc::corrupt_data, "the tables of the index {} end at change {}, its log begins at {}",
          path_, tables_end, *first_logged};
    }
    return open_to_read(path_);
  }

  result<std::optional<std::string>> get(const std::string& key, read_from from) const override {
    auto memory_only = from == read_from::memory_only;
    std::shared_lock guard{opening_, std::defer_lock};
    if (!memory_only)
      guard.lock();
    else if (!guard.try_lock())
      return std::optional<std::string>{};
    if (!db_)
      return fail(lost());
    db::ReadOptions how;
    if (memory_only)
      how.read_tier = db::kBlockCacheTier;
    std::string value;
    auto s = db_->Get(how, key, &value);
    // Of a key that may be in a table that is not open, RocksDB says that it has an empty value.
    auto is_unknown = s.IsIncomplete() || (memory_only && s.ok() && value.empty());
    if (s.IsNotFound() || is_unknown)
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
    if (listener_->stopped)
      if (auto bad = open_again(); !bad.ok())
        return bad;
    db::WriteOptions synced;
    synced.sync = !is_planted(defect::index_not_synced);
    std::shared_lock guard{opening_};
    auto s = db_->Write(synced, &writes);
    if (s.ok())
      written_ = db_->GetLatestSequenceNumber();
    run_jobs();
    return to_status(s, "writing to " + path_);
  }

  status scan(const std::string& prefix, const visitor& visit) const override {
    std::shared_lock guard{opening_};
    if (!db_)
      return lost();
    std::unique_ptr<db::Iterator> at{db_->NewIterator(db::ReadOptions{})};
    for (at->Seek(prefix); at->Valid() && at->key().starts_with(prefix); at->Next())
      if (auto outcome = visit(at->key().ToStringView(), at->value().ToStringView()); !outcome.ok())
        return outcome;
    return to_status(at->status(), "listing " + path_);
  }

  status settle() override {
    std::shared_lock guard{opening_};
    if (listener_->stopped || !db_)
      return lost();
    db::FlushOptions how;
    how.wait = jobs_ == nullptr;
    auto s = db_->Flush(how);
    run_jobs();
    return to_status(s, "flushing " + path_);
  }

  std::uint64_t last_change() const override {
    std::shared_lock guard{opening_};
    return db_ ? db_->GetLatestSequenceNumber() : 0;
  }

private:
  status open_to_read(const std::string& logs) {
    auto options = index_options(path_);
    options.wal_dir = logs;
    db_.reset();
    db::DB* opened = nullptr;
    signals_blocked for_its_threads;
    auto s = db::DB::OpenForReadOnly(options, path_, &opened);
    db_.reset(opened);
    return to_status(s, "opening the index " + path_);
  }

  // With threads RocksDB runs its jobs itself.
  void run_jobs() {
    if (jobs_)
      jobs_->run();
  }

  status lost() const {
    return {errc::io_error, "the index {} could not be opened again after a failed write", path_};
  }

  // RocksDB takes no write after a failed one. Reads go on until there is space to open it again.
  status open_again() {
    auto available = reserve_->available_bytes();
    if (!available)
      return available.error();
    if (*available < 2 * write_buffer_bytes)
      return {
        errc::no_space, "the file system of {} has {} bytes left; the index needs {} to go on",
        path_, *available, 2 * write_buffer_bytes};
    auto expected = written_;
    std::unique_lock guard{opening_};
    db_.reset();
    auto outcome = open(false);
    // The tables of the bucket do not have a change whose failure was reported.
    if (outcome.ok() && written_ != expected)
      outcome = {
        errc::io_error, "the index {} has a change whose write failed; restart the service", path_};
    if (outcome.ok()) {
      log().warn("the index was opened again after a failed write path={}", path_);
      return {};
    }
    written_ = expected;
    db_.reset();
    static_cast<void>(open_to_read());
    listener_->stopped = true;
    return outcome;
  }

  std::string path_;
  std::shared_ptr<index_reserve> reserve_;
  std::unique_ptr<db::Env> env_; // outlives the database
  index_jobs* jobs_ = nullptr;   // not null: `env_`, on a simulated machine
  std::shared_ptr<stop_listener> listener_ = std::make_shared<stop_listener>();
  std::uint64_t written_ = 0;         // the newest change; the writer's thread only
  mutable std::shared_mutex opening_; // exclusive while the database is replaced
  std::unique_ptr<db::DB> db_;
};

} // namespace

result<std::unique_ptr<index>> index::open(
  const std::string& path, bool create, std::shared_ptr<index_reserve> reserve) {
  auto made = std::make_unique<rocksdb_index>(path, std::move(reserve));
  if (auto bad = made->open(create); !bad.ok())
    return fail(std::move(bad));
  return made;
}

result<std::unique_ptr<index>> index::open_to_read(const std::string& path) {
  auto made = std::make_unique<rocksdb_index>(path, nullptr);
  if (auto bad = made->open_to_read(); !bad.ok())
    return fail(std::move(bad));
  return made;
}

result<std::unique_ptr<index>> index::repair(const std::string& path) {
  auto options = index_options(path);
  options.paranoid_checks = false;
  options.wal_recovery_mode = db::WALRecoveryMode::kSkipAnyCorruptedRecords;
  if (auto s = db::RepairDB(path, options); !s.ok())
    return fail(to_status(s, "repairing the index " + path));
  return open(path, false, nullptr);
}

} // namespace millrace::storage::rocksdb
