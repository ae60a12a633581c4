// Reads a bucket's models without opening the bucket: from its index, or a copy that is repaired
// where it must be, and from its segments. Called by the command.
#include <millrace/core/digest.hpp>
#include <millrace/storage/io/file_io.hpp>
#include <millrace/storage/rocksdb/index_reader.hpp>
#include <millrace/storage/rocksdb/record_space.hpp>
#include <millrace/storage/rocksdb/rocksdb_bucket.hpp>
#include <millrace/storage/rocksdb/stop_mark.hpp>

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>

namespace millrace::storage {

using namespace rocksdb;

namespace {

namespace fs = std::filesystem;

/// A directory that goes with its owner.
class temporary_directory {
public:
  temporary_directory() {
    std::error_code ignored;
    auto pattern = (fs::temp_directory_path(ignored) / "millrace-salvage-XXXXXX").string();
    if (::mkdtemp(pattern.data()))
      path_ = pattern;
  }
  temporary_directory(const temporary_directory&) = delete;
  temporary_directory& operator=(const temporary_directory&) = delete;
  ~temporary_directory() {
    std::error_code ignored;
    if (!path_.empty())
      fs::remove_all(path_, ignored);
  }

  const std::string& path() const noexcept { return path_; }

private:
  std::string path_;
};

using records = std::map<std::string, std::string>; // encoded, by model

result<records> read_records(const index& db) {
  records found;
  auto outcome = db.scan(keys::records, [&](std::string_view key, std::string_view value) {
    found.emplace(key.substr(keys::records.size()), value);
    return status{};
  });
  return outcome.ok() ? result<records>{std::move(found)} : fail(std::move(outcome));
}

// Returns 0 for extents that no disk can hold.
std::uint64_t held_bytes(const stored_record& record) {
  std::uint64_t held = 0;
  for (auto& e : record.extents)
    if (__builtin_add_overflow(held, e.length, &held))
      return 0;
  return held;
}

/// A version in the segments or in the index.
class stored_source final : public archive::tensor_source {
public:
  static result<std::unique_ptr<stored_source>> open(
    const std::string& segments, const index& db, const std::string& model,
    const std::string& encoded) {
    auto record = decode_record(model, encoded);
    if (!record)
      return fail(record.error());
    auto checked = check_record(*record, model);
    if (!checked)
      return fail(checked.error());
    // Checked before anything as large as the record claims is made.
    auto room = record->inlined ? std::uint64_t{record->window_bytes} : held_bytes(*record);
    if (checked->size_bytes > room)
      return fail(errc::corrupt_data, "its space is too small for its tensors");
    std::unique_ptr<stored_source> made{new stored_source{segments, std::move(*record)}};
    made->packed_ = io::pack(checked->tensor_bytes, made->record_.window_bytes);
    if (auto bad = made->find_bytes(db); !bad.ok())
      return fail(std::move(bad));
    return made;
  }

  /// True if it only says that a model was erased.
  bool is_mark() const noexcept { return record_.model.spec.erased; }

  const layout& tensors() const noexcept override { return record_.model.spec.tensors; }
  const archive::text_pairs& metadata() const noexcept override {
    return record_.model.spec.metadata;
  }

  status read(std::uint32_t tensor, std::uint64_t offset, std::span<std::byte> into) override {
    for (auto& part : io::parts_of(packed_, {tensor, offset, into.size()}))
      if (auto bad = read_stream(part.at, into.subspan(part.tensor_offset - offset, part.length));
          !bad.ok())
        return bad;
    return {};
  }

  /// Compares all bytes with their digests, if there are some.
  status verify() {
    auto& digests = record_.model.digests;
    if (digests.empty())
      return {};
    std::vector<std::byte> block(digest_block_bytes);
    std::size_t next = 0;
    auto& all = tensors().tensors;
    for (std::uint32_t i = 0; i < all.size(); ++i) {
      auto total = size_bytes(all[i]).value_or(0);
      for (std::uint64_t at = 0; at < total; at += digest_block_bytes) {
        std::span bytes{block.data(), std::min(digest_block_bytes, total - at)};
        if (auto bad = read(i, at, bytes); !bad.ok())
          return bad;
        if (next >= digests.size() || digest(bytes.data(), bytes.size()) != digests[next++])
          return {errc::corrupt_data, "tensor {} does not match its checksums", all[i].name};
      }
    }
    return {};
  }

private:
  stored_source(std::string segments, stored_record record)
    : segments_(std::move(segments)), record_(std::move(record)) {}

  status find_bytes(const index& db) {
    if (!record_.inlined)
      return held_bytes(record_) >= packed_.stream_bytes
        ? status{}
        : status{errc::corrupt_data, "its extents are too small for its tensors"};
    auto stream = inlined_bytes(db, record_, packed_);
    if (!stream)
      return stream.error();
    stream_ = std::move(*stream);
    return {};
  }

  status read_stream(std::uint64_t at, std::span<std::byte> into) {
    if (record_.inlined) {
      std::memcpy(into.data(), stream_.data() + at, into.size());
      return {};
    }
    for (auto& run : locate(record_.extents, at, into.size(), ~std::uint64_t{0})) {
      auto path = fmt::format("{}/{:06}.seg", segments_, run.file);
      auto& file = files_[run.file];
      if (file.get() < 0) {
        auto opened = io::open_file(path, O_RDONLY);
        if (!opened)
          return opened.error();
        file = std::move(*opened);
      }
      auto bad = io::read_all(file, into.data() + run.from, run.length, run.offset, path);
      if (!bad.ok())
        return bad;
    }
    return {};
  }

  std::string segments_;
  stored_record record_;
  io::packing packed_;
  std::string stream_;
  std::map<std::uint32_t, io::file_handle> files_;
};

using index_records = std::pair<std::unique_ptr<index>, records>;

result<index_records> with_records(result<std::unique_ptr<index>> db) {
  auto found = db ? read_records(**db) : fail(db.error());
  return found ? result<index_records>{{std::move(*db), std::move(*found)}} : fail(found.error());
}

// The index as it is, if all of it is there and can be read; else a copy that is repaired. The
// repair also reads tables that the index does not name.
result<index_records> read_index(const std::string& path, const std::string& copy, salvager& to) {
  auto whole = with_records(open_index_to_read(path));
  if (whole)
    return whole;
  to.lose("a part of the index: " + whole.error().detail());
  std::error_code why;
  fs::copy(path + "/index", copy, why);
  if (why)
    return fail(status_from_errno(why.value(), fmt::format("copying {}/index to {}", path, copy)));
  auto repaired = with_records(index::repair(copy));
  auto stopped_at = read_stop_mark(path);
  if (!repaired || !stopped_at || !*stopped_at)
    return repaired;
  // Tables that RocksDB has compacted do not tell the numbers of their changes.
  auto last_change = repaired->first->last_change();
  if (last_change < **stopped_at)
    to.lose(fmt::format(
      "the repaired index ends at change {} of {}: newer models may be lost", last_change,
      **stopped_at));
  return repaired;
}

} // namespace

bool is_rocksdb_bucket(const std::string& path) {
  std::error_code why;
  return fs::is_directory(path + "/index", why) || has_held_models(path);
}

status salvage_rocksdb_bucket(const std::string& path, salvager& to) {
  if (!is_rocksdb_bucket(path))
    return {
      errc::invalid_argument, "{} is no directory of a rocksdb provider: it has no index", path};
  std::error_code why;
  if (fs::is_empty(path + "/index", why) || why)
    return check_no_index(path);
  auto lock = lock_directory(path);
  if (!lock)
    return lock.error();
  temporary_directory work;
  if (work.path().empty())
    return status_from_errno(errno, "making a directory for a copy of the index in TMPDIR");
  auto opened = read_index(path, work.path() + "/index", to);
  if (!opened)
    return opened.error();
  auto& [db, found] = *opened;
  for (auto& [model, encoded] : found) {
    if (is_own_name(model))
      continue;
    auto source = stored_source::open(path + "/segments", *db, model, encoded);
    auto bad = source ? (*source)->verify() : source.error();
    if (!bad.ok()) {
      to.lose(fmt::format("model {}: {}", model, bad.detail()));
      continue;
    }
    if ((*source)->is_mark())
      continue;
    if (auto stopped = to.take({model, {}, {}, {}, {}}, std::move(*source)); !stopped.ok())
      return stopped;
  }
  return {};
}

} // namespace millrace::storage
