// Open versions and their reads. Called by the bucket.
#include <millrace/storage/io/staged_reader.hpp>
#include <millrace/storage/rocksdb/opening.hpp>

#include <cstring>
#include <shared_mutex>
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
  bool is_in_memory() const override { return record->inlined; }
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
/// in the index but not yet in the table. With `memory_only`, also when something is not in memory
/// or takes long.
result<bool> read_record(opening& open, read_from from) {
  auto& e = *open.home;
  auto& summary = open.version->summary;
  open.record = e.records.find(summary.version);
  if (!open.record) {
    if (from == read_from::memory_only)
      return false;
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
  if (from == read_from::memory_only && summary.size_bytes > io::at_once_bytes_max)
    return false;
  auto value = e.files.db->get(keys::stream(summary.name), from);
  if (!value)
    return fail(value.error());
  auto stream = *value ? decode_stream(summary.version, **value) : std::nullopt;
  if (!stream)
    return false;
  open.stream = std::move(*stream);
  return true;
}

// The most pieces of a layout that is packed on the caller's thread.
constexpr std::uint64_t at_once_pieces_max = 1024;

bool has_few_pieces(const model_summary& summary) {
  return summary.tensors + summary.size_bytes / io::window_bytes_min <= at_once_pieces_max;
}

/// Makes one attempt. Returns false as `read_record` does.
result<bool> try_to_open(
  opening& open, const std::string& name, std::uint64_t version, read_from from) {
  auto found = open.home->table.use(name, version);
  if (!found)
    return fail(found.error());
  open.version = std::move(*found);
  if (from == read_from::memory_only && !has_few_pieces(open.version->summary))
    return false;
  auto read = read_record(open, from);
  if (!read)
    return fail(read.error().within("opening model " + name));
  if (!*read)
    return false;
  for (auto& tensor : open.record->model.spec.tensors.tensors)
    open.sizes.push_back(*size_bytes(tensor));
  open.packing = io::pack(open.sizes, open.record->window_bytes);
  return true;
}

std::shared_ptr<opening> opening_of(const std::shared_ptr<engine>& e) {
  auto open = std::make_shared<opening>();
  open->home = e;
  return open;
}

} // namespace

result<std::shared_ptr<opened_model>> open_model_in_memory(
  const std::shared_ptr<engine>& e, const std::string& name, std::uint64_t version) {
  auto ticket = e->operations.enter();
  // Closing may have dropped the index though there is a ticket: it waits for them no longer than
  // its deadline.
  std::shared_lock reading{e->reading, std::defer_lock};
  if (!ticket || !reading.try_lock() || !e->files.db)
    return nullptr;
  auto open = opening_of(e);
  auto opened = try_to_open(*open, name, version, read_from::memory_only);
  if (!opened)
    return fail(opened.error());
  if (!*opened)
    return nullptr;
  return std::make_shared<rocksdb_opened_model>(std::move(open));
}

result<std::shared_ptr<opened_model>> open_model(
  const std::shared_ptr<engine>& e, const std::string& name, std::uint64_t version) {
  auto open = opening_of(e);
  // An attempt fails only while a change of this name is in the index, but not yet in the table.
  for (auto attempts_left = 100'000; attempts_left > 0; --attempts_left) {
    auto opened = try_to_open(*open, name, version, read_from::anywhere);
    if (!opened)
      return fail(opened.error());
    if (*opened)
      return std::make_shared<rocksdb_opened_model>(std::move(open));
    std::this_thread::yield();
  }
  return fail(
    errc::corrupt_data, "opening model {}: the index of {} lacks part of version {}", name,
    e->options.path, open->version->summary.version);
}

} // namespace millrace::storage::rocksdb
