// Open versions and their reads. Called by the bucket.
#include <millrace/storage/io/staged_reader.hpp>
#include <millrace/storage/rocksdb/opening.hpp>

#include <cstring>
#include <thread>

namespace millrace::storage::rocksdb {

namespace {

/// An open version. The opened model and its jobs share it, and it keeps the version's extents.
struct opening final : io::staged_reader {
  std::shared_ptr<engine> home;
  version_ptr version;
  record_ptr record;
  std::vector<std::uint64_t> sizes; // the sizes of the tensors, in bytes
  io::packing packing;
  std::string stream; // an inlined model's bytes

  std::uint64_t window_bytes() const override { return home->options.window_bytes; }

protected:
  result<gate::ticket> enter() const override {
    auto ticket = home->operations.enter();
    if (!ticket)
      return fail(closed_status(*home));
    return ticket;
  }
  const std::string& model_name() const override { return record->model.spec.name; }
  const std::vector<std::uint64_t>& tensor_bytes() const override { return sizes; }
  const io::packing& packed() const override { return packing; }
  io::io_pool& pool() const override { return home->pool; }
  jobs read_jobs(const std::vector<io::read_run>& runs, std::byte* data) override;

private:
  std::shared_ptr<opening> self() { return std::static_pointer_cast<opening>(shared_from_this()); }
};

io::staged_reader::jobs opening::read_jobs(const std::vector<io::read_run>& runs, std::byte* data) {
  jobs work;
  if (record->inlined) {
    work.emplace_back([self = self(), runs, data] {
      auto& bytes = self->stream;
      for (auto& run : runs)
        std::memcpy(
          data + run.memory, bytes.data() + run.at, std::min(run.length, bytes.size() - run.at));
      return status{};
    });
    return work;
  }
  for (auto& run : runs)
    for (auto& part : locate(version->space.extents(), run.at, run.length, io_bytes_max))
      work.emplace_back([self = self(), part, to = data + run.memory + part.from] {
        return self->home->space->read(part, to);
      });
  return work;
}

class rocksdb_opened_model final : public opened_model {
public:
  explicit rocksdb_opened_model(std::shared_ptr<opening> open) : open_(std::move(open)) {}

  const model_record& record() const noexcept override { return open_->record->model; }

  std::vector<std::vector<wanted>> plan(const std::vector<wanted>& ranges) const override {
    return open_->plan(ranges);
  }
  std::uint64_t window_bytes() const noexcept override { return open_->window_bytes(); }
  void fetch(std::vector<wanted> ranges, memory_block staging, completion<window> done) override {
    open_->fetch(std::move(ranges), std::move(staging), std::move(done));
  }

private:
  std::shared_ptr<opening> open_;
};

/// Reads the record and the stream. Returns false when the index has another version: a change is
/// in the index but not yet in the table.
result<bool> read_record(engine& e, opening& open) {
  auto& summary = open.version->summary;
  open.record = e.records.find(summary.version);
  if (!open.record) {
    auto value = e.files.db->get(keys::record(summary.name));
    if (!value)
      return fail(value.error());
    if (!*value)
      return false;
    auto record = decode_record(summary.name, **value);
    if (!record)
      return fail(record.error());
    if (record->model.version != summary.version)
      return false;
    open.record = std::make_shared<const stored_record>(std::move(*record));
    e.records.put(open.record, 2 * (*value)->size());
  }
  if (!open.record->inlined || summary.size_bytes == 0)
    return true;
  auto value = e.files.db->get(keys::stream(summary.name));
  if (!value)
    return fail(value.error());
  auto stream = *value ? decode_stream(summary.version, **value) : std::nullopt;
  if (!stream)
    return false;
  open.stream = std::move(*stream);
  return true;
}

} // namespace

result<std::shared_ptr<opened_model>> open_model(
  const std::shared_ptr<engine>& e, const std::string& name, std::uint64_t version) {
  auto open = std::make_shared<opening>();
  open->home = e;
  // A round fails only while a change of this name is in the index, but not yet in the table.
  for (auto attempts_left = 100'000; attempts_left > 0; --attempts_left) {
    auto found = e->table.use(name, version);
    if (!found)
      return fail(found.error());
    open->version = std::move(*found);
    auto read = read_record(*e, *open);
    if (!read)
      return fail(read.error().within("opening model " + name));
    if (!*read) {
      std::this_thread::yield();
      continue;
    }
    for (auto& tensor : open->record->model.spec.tensors.tensors)
      open->sizes.push_back(*size_bytes(tensor));
    open->packing = io::pack(open->sizes, open->record->window_bytes);
    return std::make_shared<rocksdb_opened_model>(std::move(open));
  }
  return fail(
    errc::corrupt_data, "opening model {}: the index of {} lacks part of version {}", name,
    e->options.path, open->version->summary.version);
}

} // namespace millrace::storage::rocksdb
