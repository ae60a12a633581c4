// Open models and their reads.
#include <millrace/storage/io/packing.hpp>
#include <millrace/storage/model_check.hpp>
#include <millrace/storage/rocksdb/opening.hpp>

#include <cstring>
#include <thread>

namespace millrace::storage::rocksdb {

namespace {

/// What a reader and its jobs share; keeps the version's extents from being used again.
struct open_version : std::enable_shared_from_this<open_version> {
  std::shared_ptr<engine> home;
  version_ptr version;
  record_ptr record;
  std::vector<std::uint64_t> tensor_bytes;
  packing packed;
  std::string stream; // an inlined model's bytes

  void fetch(std::vector<wanted> ranges, std::weak_ptr<void> asker, completion<window> done);

private:
  status within(const status& why) const {
    return why.within("reading model " + record->model.spec.name);
  }
  void read(
    const read_plan& plan, memory_block memory, gate::ticket ticket, completion<window> done);
  std::vector<std::function<status()>> make_jobs(const read_plan& plan, std::byte* data);
};

void open_version::fetch(
  std::vector<wanted> ranges, std::weak_ptr<void> asker, completion<window> done) {
  auto ticket = home->operations.enter();
  if (!ticket)
    return done(fail(closed_status(*home)));
  if (auto bad = check_ranges(tensor_bytes, ranges); !bad.ok())
    return done(fail(within(bad)));
  auto plan = plan_read(packed, ranges);
  if (plan.memory_bytes > home->options.window_bytes)
    return done(fail(within(
      {errc::invalid_argument,
       "the ranges need " + std::to_string(plan.memory_bytes) + " bytes, a window has " +
         std::to_string(home->options.window_bytes) + "; fetch them as `plan` cuts them"})));
  auto size = std::max(plan.memory_bytes, direct_io_bytes);
  auto lent = [self = shared_from_this(), ticket, plan = std::move(plan),
               done = std::move(done)](result<memory_block> memory) mutable {
    if (!memory)
      return done(fail(self->within(memory.error())));
    std::exchange(self, nullptr)
      ->read(plan, std::move(*memory), std::move(ticket), std::move(done));
  };
  home->staging.acquire(size, std::move(asker), std::move(lent));
}

void open_version::read(
  const read_plan& plan, memory_block memory, gate::ticket ticket, completion<window> done) {
  window filled{0, {}, memory.owner};
  filled.pieces.reserve(plan.pieces.size());
  for (auto& p : plan.pieces)
    filled.pieces.push_back({p.tensor, p.tensor_offset, memory.data + p.at, p.length});
  auto jobs = make_jobs(plan, memory.data);
  memory.owner.reset();
  home->pool.post_all(
    std::move(jobs),
    [self = shared_from_this(), ticket = std::move(ticket), filled = std::move(filled),
     done = std::move(done)](status outcome) mutable {
      if (!outcome.ok())
        outcome = self->within(outcome);
      // The version is let go before the caller goes on: it may be what an eviction waits for.
      self.reset();
      ticket.reset();
      outcome.ok() ? done(std::move(filled)) : done(fail(std::move(outcome)));
    });
}

std::vector<std::function<status()>> open_version::make_jobs(
  const read_plan& plan, std::byte* data) {
  std::vector<std::function<status()>> jobs;
  if (record->inlined) {
    jobs.emplace_back([self = shared_from_this(), runs = plan.runs, data] {
      auto& bytes = self->stream;
      for (auto& run : runs)
        std::memcpy(
          data + run.memory, bytes.data() + run.at, std::min(run.length, bytes.size() - run.at));
      return status{};
    });
    return jobs;
  }
  for (auto& run : plan.runs)
    for (auto& part : locate(version->space.extents(), run.at, run.length, io_bytes_max))
      jobs.emplace_back([self = shared_from_this(), part, to = data + run.memory + part.from] {
        return self->home->space->read(part, to);
      });
  return jobs;
}

class rocksdb_opened_model final : public opened_model {
public:
  explicit rocksdb_opened_model(std::shared_ptr<open_version> open) : open_(std::move(open)) {}
  ~rocksdb_opened_model() override {
    asker_.reset();
    open_->home->staging.nudge();
  }

  const model_record& record() const noexcept override { return open_->record->model; }

  std::vector<std::vector<wanted>> plan(const std::vector<wanted>& ranges) const override {
    return cut_ranges(open_->packed, ranges, open_->home->options.window_bytes);
  }
  void fetch(std::vector<wanted> ranges, completion<window> done) override {
    open_->fetch(std::move(ranges), asker_, std::move(done));
  }

private:
  std::shared_ptr<open_version> open_;
  std::shared_ptr<void> asker_ = std::make_shared<char>();
};

/// Fills record and stream. False when the index shows another version: a change is being made
/// there that the table learns of in a moment.
result<bool> read_record(engine& e, open_version& open) {
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
  auto open = std::make_shared<open_version>();
  open->home = e;
  // Every round without success is a change of this name on its way from the index to the table.
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
      open->tensor_bytes.push_back(*size_bytes(tensor));
    open->packed = pack(open->tensor_bytes, open->record->window_bytes);
    return std::make_shared<rocksdb_opened_model>(std::move(open));
  }
  return fail(
    errc::corrupt_data,
    "opening model " + name + ": the index " + e->options.path + " does not have version " +
      std::to_string(open->version->summary.version) + " whole");
}

} // namespace millrace::storage::rocksdb
