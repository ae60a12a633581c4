// Reads records and streams without an engine. Called by `millrace models verify`.
#include <millrace/core/digest.hpp>
#include <millrace/core/model_graph.hpp>
#include <millrace/storage/rocksdb/index_reader.hpp>
#include <millrace/storage/rocksdb/record_space.hpp>
#include <millrace/storage/rocksdb/rocksdb_bucket.hpp>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>

namespace millrace::storage {

namespace rocksdb {

namespace {

class verifier {
public:
  verifier(const index& db, segment_store& space) : db_(db), space_(space) {}

  status learn_layers() {
    return db_.scan(keys::layers, [&](std::string_view key, std::string_view) {
      layers_.emplace(key);
      return status{};
    });
  }

  // Returns none for what counts as no model.
  std::optional<model_at_rest> verify(std::string_view name, std::string_view value) {
    model_at_rest found;
    found.name = name;
    read_bytes_ = 0;
    auto record = decode_record(name, value);
    if (!record) {
      found.outcome = record.error();
      return found;
    }
    auto checked = check_record(*record, name);
    found.version = record->model.version;
    found.has_checksums = !record->model.digests.empty();
    if (!checked) {
      found.outcome = checked.error();
      return found;
    }
    found.size_bytes = checked->size_bytes;
    found.outcome = verify(*record, *checked);
    found.read_bytes = read_bytes_;
    if (found.outcome.ok() && (is_own_name(name) || record->model.spec.erased))
      return {};
    return found;
  }

private:
  status verify(stored_record& record, const checked_spec& checked) {
    for (auto& id : checked.layers)
      if (!layers_.count(keys::layer(id)))
        return {errc::corrupt_data, "the description of layer {} is missing", to_string(id)};
    auto taken = claim_space(space_, record, checked);
    if (!taken)
      return taken.error();
    // Kept until all models are read, so that two models with the same extents are found.
    leases_.push_back(std::move(taken->lease));
    if (auto bad = check_digests(checked.tensor_bytes, record.model.digests); !bad.ok())
      return {errc::corrupt_data, bad.detail()};
    first_digests_.clear();
    for (std::uint64_t first = 0; auto bytes : checked.tensor_bytes) {
      first_digests_.push_back(first);
      first += digest_count(bytes);
    }
    return record.inlined ? verify_inlined(record, taken->packing)
                          : verify_windows(record, taken->packing);
  }

  status verify_inlined(const stored_record& record, const io::packing& packed) {
    if (packed.pieces.empty())
      return {};
    auto stream = inlined_bytes(db_, record, packed);
    if (!stream)
      return stream.error();
    return compare(record, packed, 0, reinterpret_cast<const std::byte*>(stream->data()));
  }

  status verify_windows(const stored_record& record, const io::packing& packed) {
    for (std::size_t i = 0; i < packed.windows.size(); ++i) {
      auto& w = packed.windows[i];
      buffer_.resize(w.size_bytes);
      for (auto& run : locate(record.extents, w.at, w.size_bytes, w.size_bytes))
        if (auto bad = space_.read(run, buffer_.data() + run.from); !bad.ok())
          return bad;
      if (auto bad = compare(record, packed, i, buffer_.data()); !bad.ok())
        return bad;
    }
    return {};
  }

  // Compares the pieces of one window, which `data` has from its begin on.
  status compare(
    const stored_record& record, const io::packing& packed, std::size_t window,
    const std::byte* data) {
    auto& w = packed.windows[window];
    for (auto i = w.first; i < w.first + w.count; ++i)
      read_bytes_ += packed.pieces[i].length;
    if (record.model.digests.empty())
      return {};
    for (auto i = w.first; i < w.first + w.count; ++i) {
      auto& piece = packed.pieces[i];
      auto* digests = record.model.digests.data() + first_digests_[piece.tensor];
      for (std::uint64_t at = 0; at < piece.length; at += digest_block_bytes) {
        auto length = std::min(digest_block_bytes, piece.length - at);
        auto offset = piece.tensor_offset + at;
        auto expected = digests[offset / digest_block_bytes];
        if (digest(data + (piece.at - w.at) + at, length) != expected)
          return {
            errc::corrupt_data, "tensor {} differs from its checksum in bytes {}+{}",
            record.model.spec.tensors.tensors[piece.tensor].name, offset, length};
      }
    }
    return {};
  }

  const index& db_;
  segment_store& space_;
  std::set<std::string, std::less<>> layers_; // keys
  std::vector<space_lease> leases_;
  std::vector<std::uint64_t> first_digests_; // the first digest of each tensor of the model
  std::vector<std::byte> buffer_;
  std::uint64_t read_bytes_ = 0; // the bytes read of the model
};

status verify_all(
  const bucket_files& files, const std::function<void(const model_at_rest&)>& seen) {
  verifier models{*files.db, *files.space};
  if (auto bad = models.learn_layers(); !bad.ok())
    return bad;
  return files.db->scan(keys::records, [&](std::string_view key, std::string_view value) {
    auto name = key.substr(keys::records.size());
    if (auto model = models.verify(name, value))
      seen(*model);
    return status{};
  });
}

} // namespace

} // namespace rocksdb

status verify_rocksdb_bucket(
  const std::string& path, const std::function<void(const model_at_rest&)>& seen) {
  auto files = rocksdb::open_to_verify(path);
  auto outcome = files ? rocksdb::verify_all(*files, seen) : files.error();
  return rocksdb::with_remedy(std::move(outcome), path);
}

} // namespace millrace::storage
