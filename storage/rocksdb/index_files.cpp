// Writable files of RocksDB that use the reserve. Called by the index, and by RocksDB's threads.
#include <millrace/storage/rocksdb/index_files.hpp>

#include <rocksdb/file_system.h>
#include <sys/stat.h>

namespace millrace::storage::rocksdb {

namespace {

namespace db = ::rocksdb;

// Runs `step`, again after each part of the reserve that it was given.
template <class Step>
db::IOStatus with_reserve(index_reserve& reserve, std::uint64_t size_bytes, Step step) {
  for (;;) {
    db::IOStatus outcome = step();
    if (!outcome.IsNoSpace() || !reserve.release(size_bytes))
      return outcome;
  }
}

class reserved_file final : public db::FSWritableFileOwnerWrapper {
public:
  reserved_file(
    std::unique_ptr<db::FSWritableFile> file, bool is_table, std::shared_ptr<index_reserve> reserve)
    : FSWritableFileOwnerWrapper(std::move(file)), reserve_(std::move(reserve)),
      is_table_(is_table) {}

  db::IOStatus Append(
    const db::Slice& data, const db::IOOptions& options, db::IODebugContext* context) override {
    // A failed write may have written a part. Written again at the same place, no byte is there
    // twice.
    auto write = [&] { return target()->PositionedAppend(data, written_bytes_, options, context); };
    auto outcome = compacts() ? write() : with_reserve(*reserve_, data.size(), write);
    if (outcome.ok())
      written_bytes_ += data.size();
    else
      target()->Truncate(written_bytes_, options, context).PermitUncheckedError();
    return outcome;
  }
  db::IOStatus Append(
    const db::Slice& data, const db::IOOptions& options, const db::DataVerificationInfo&,
    db::IODebugContext* context) override {
    return Append(data, options, context);
  }
  db::IOStatus Truncate(
    std::uint64_t size_bytes, const db::IOOptions& options, db::IODebugContext* context) override {
    auto outcome = target()->Truncate(size_bytes, options, context);
    if (outcome.ok())
      written_bytes_ = size_bytes;
    return outcome;
  }

private:
  // Compaction writes a copy of what is there already. It can wait for space, and would use up the
  // reserve. RocksDB gives only tables that are flushed from memory a high priority.
  bool compacts() { return is_table_ && GetIOPriority() != db::Env::IO_HIGH; }

  std::shared_ptr<index_reserve> reserve_;
  bool is_table_;
  std::uint64_t written_bytes_ = 0;
};

class index_file_system final : public db::FileSystemWrapper {
public:
  explicit index_file_system(std::shared_ptr<index_reserve> reserve)
    : FileSystemWrapper(db::FileSystem::Default()), reserve_(std::move(reserve)) {}

  const char* Name() const override { return "millrace"; }

  db::IOStatus NewWritableFile(
    const std::string& path, const db::FileOptions& options,
    std::unique_ptr<db::FSWritableFile>* file, db::IODebugContext* context) override {
    auto outcome = with_reserve(
      *reserve_, 0, [&] { return target()->NewWritableFile(path, options, file, context); });
    if (!outcome.ok())
      return outcome;
    *file = std::make_unique<reserved_file>(std::move(*file), path.ends_with(".sst"), reserve_);
    make_private(path);
    return outcome;
  }
  db::IOStatus RenameFile(
    const std::string& from, const std::string& to, const db::IOOptions& options,
    db::IODebugContext* context) override {
    return with_reserve(
      *reserve_, 0, [&] { return target()->RenameFile(from, to, options, context); });
  }
  db::IOStatus LockFile(
    const std::string& path, const db::IOOptions& options, db::FileLock** lock,
    db::IODebugContext* context) override {
    auto outcome =
      with_reserve(*reserve_, 0, [&] { return target()->LockFile(path, options, lock, context); });
    if (outcome.ok())
      make_private(path);
    return outcome;
  }

private:
  // The directory keeps others out. This is for files that are moved to another one.
  static void make_private(const std::string& path) {
    static_cast<void>(::chmod(path.c_str(), 0600));
  }

  std::shared_ptr<index_reserve> reserve_;
};

} // namespace

std::unique_ptr<db::Env> make_index_env(std::shared_ptr<index_reserve> reserve) {
  return db::NewCompositeEnv(std::make_shared<index_file_system>(std::move(reserve)));
}

} // namespace millrace::storage::rocksdb
