// The calls of the bucket: each passes the gate and goes to the pool, the committer, or memory.
// Called by a provider's `tensor_store`.
#include <millrace/storage/io/packing.hpp>
#include <millrace/storage/io/staged_reader.hpp>
#include <millrace/storage/model_check.hpp>
#include <millrace/storage/rocksdb/engine.hpp>
#include <millrace/storage/rocksdb/index_reader.hpp>
#include <millrace/storage/rocksdb/opening.hpp>
#include <millrace/storage/rocksdb/rocksdb_bucket.hpp>
#include <millrace/storage/rocksdb/storing.hpp>

#include <algorithm>

namespace millrace::storage {

namespace rocksdb {

using namespace io;

namespace {

class rocksdb_bucket final : public bucket {
public:
  explicit rocksdb_bucket(std::shared_ptr<engine> e) : engine_(std::move(e)) {}
  ~rocksdb_bucket() override;

  std::string_view kind() const noexcept override { return "rocksdb"; }
  bucket_capabilities capabilities() const noexcept override {
    return {
      .durable = true,
      .in_place = false,
      .evicts = engine_->options.full == when_full::evict,
      .at_once_bytes_max = std::min(engine_->options.inline_max_bytes, at_once_bytes_max)};
  }

  void reserve(
    model_spec spec, std::vector<described_layer> layers,
    completion<std::unique_ptr<reservation>> done) override;
  void open(std::string name, std::uint64_t version, completion<std::shared_ptr<opened_model>> done)
    override;
  void erase(std::string name, std::uint64_t version, completion<void> done) override;
  void pin(std::string name, bool pinned, completion<void> done) override;
  void list(
    std::string prefix, std::string after, std::uint32_t count_max,
    completion<std::vector<model_summary>> done) override;
  void resolve(std::vector<layer_id> ids, completion<std::vector<described_layer>> done) override;
  bucket_stats stats() const override;
  status close(std::uint32_t deadline_ms) override;

private:
  template <class T, class F>
  void post(completion<T> done, F work);
  void commit(change c, completion<void> done);

  std::shared_ptr<engine> engine_;
  std::atomic<bool> stopped_ = false;
};

// Runs `work(done, ticket)` on the pool, or calls `done` with the error of a closed bucket.
template <class T, class F>
void rocksdb_bucket::post(completion<T> done, F work) {
  auto ticket = engine_->operations.enter();
  if (!ticket)
    return done(fail(closed_status(*engine_)));
  engine_->pool.post(
    [done = std::move(done), ticket, work = std::move(work)](const status& stopped) {
      stopped.ok() ? work(done, ticket) : done(fail(stopped));
    });
}

void rocksdb_bucket::reserve(
  model_spec spec, std::vector<described_layer> layers,
  completion<std::unique_ptr<reservation>> done) {
  post<std::unique_ptr<reservation>>(
    std::move(done),
    [e = engine_, spec = std::move(spec), layers = std::move(layers)](auto& done, auto& ticket) {
      reserve_model(e, spec, layers, ticket, done);
    });
}

void rocksdb_bucket::open(
  std::string name, std::uint64_t version, completion<std::shared_ptr<opened_model>> done) {
  auto opened = open_model_in_memory(engine_, name, version);
  if (!opened || *opened)
    return done(std::move(opened));
  post<std::shared_ptr<opened_model>>(
    std::move(done), [e = engine_, name = std::move(name), version](auto& done, auto&) {
      done(open_model(e, name, version));
    });
}

void rocksdb_bucket::commit(change c, completion<void> done) {
  auto ticket = engine_->operations.enter();
  if (!ticket)
    return done(fail(closed_status(*engine_)));
  c.finish = [apply = std::move(c.finish), ticket,
              done = std::move(done)](const commit_outcome& outcome) {
    if (outcome.why.ok())
      apply(outcome);
    outcome.why.ok() ? done({}) : done(fail(outcome.why));
  };
  engine_->commits.submit(std::move(c));
}

void rocksdb_bucket::erase(std::string name, std::uint64_t version, completion<void> done) {
  change drop;
  drop.name = name;
  drop.removes = true;
  drop.stage = [e = engine_, name, version](index_batch& batch) -> status {
    auto newest = e->table.newest(name);
    if (newest == 0 || (version != 0 && version != newest))
      return no_such_model(name, version, newest);
    batch.push_back({keys::record(name), std::nullopt});
    batch.push_back({keys::stream(name), std::nullopt});
    return {};
  };
  drop.finish = [e = engine_, name](const commit_outcome&) { e->table.remove(name); };
  commit(std::move(drop), std::move(done));
}

void rocksdb_bucket::pin(std::string name, bool pinned, completion<void> done) {
  auto changed = std::make_shared<stored_record>();
  auto size = std::make_shared<std::uint64_t>();
  change mark;
  mark.name = name;
  mark.stage = [e = engine_, name, pinned, changed, size](index_batch& batch) -> status {
    if (!e->table.contains(name))
      return no_such_model(name, 0, 0);
    auto value = e->files.db->get(keys::record(name));
    if (!value)
      return value.error();
    auto record = decode_record(name, value->value_or(""));
    if (!record)
      return record.error();
    *changed = std::move(*record);
    changed->model.spec.pinned = pinned;
    auto encoded = encode_record(*changed);
    *size = 2 * encoded.size();
    batch.push_back({keys::record(name), std::move(encoded)});
    return {};
  };
  mark.finish = [e = engine_, name, pinned, changed, size](const commit_outcome&) {
    e->records.put(changed, *size);
    e->table.set_pinned(name, pinned);
  };
  commit(std::move(mark), std::move(done));
}

void rocksdb_bucket::list(
  std::string prefix, std::string after, std::uint32_t count_max,
  completion<std::vector<model_summary>> done) {
  post<std::vector<model_summary>>(
    std::move(done),
    [e = engine_, prefix = std::move(prefix), after = std::move(after),
     count_max](auto& done, auto&) { done(e->table.list(prefix, after, count_max)); });
}

void rocksdb_bucket::resolve(
  std::vector<layer_id> ids, completion<std::vector<described_layer>> done) {
  post<std::vector<described_layer>>(
    std::move(done),
    [e = engine_, ids = std::move(ids)](auto& done, auto&) { done(e->layers->resolve(ids)); });
}

bucket_stats rocksdb_bucket::stats() const {
  auto& account = *engine_->files.account;
  return {
    engine_->table.size(),
    account.capacity_bytes(),
    account.used_bytes(),
    engine_->evictions,
    engine_->descriptions->used_bytes(),
    engine_->table.marks()};
}

status rocksdb_bucket::close(std::uint32_t deadline_ms) {
  if (stopped_.exchange(true))
    return {};
  engine_->operations.close();
  auto left =
    engine_->operations.wait_empty(steady_clock::now() + std::chrono::milliseconds{deadline_ms});
  engine_->stop();
  if (left == 0)
    return {};
  return {
    errc::deadline_exceeded,
    "closing the rocksdb bucket {}: {} operations were still running after {} ms and were stopped",
    engine_->options.path, left, deadline_ms};
}

rocksdb_bucket::~rocksdb_bucket() { static_cast<void>(close(0)); }

status check_options(const rocksdb_bucket_options& options) {
  auto wrong = [&](const std::string& how) {
    return status{errc::invalid_argument, "rocksdb bucket {}: {}", options.path, how};
  };
  if (options.path.empty())
    return wrong("no path");
  if (options.window_bytes < window_bytes_min || options.window_bytes % direct_io_bytes != 0)
    return wrong(fmt::format(
      "window_bytes is {}, and must be a multiple of 4096, at least {}", options.window_bytes,
      window_bytes_min));
  if (options.inline_max_bytes > options.window_bytes)
    return wrong("inline_max_bytes is larger than window_bytes");
  if (options.io_threads == 0 || options.io_threads > 64)
    return wrong("io_threads must be 1 to 64");
  if (options.segment_bytes < extent_unit_bytes || options.segment_bytes % extent_unit_bytes != 0)
    return wrong(fmt::format("segment_bytes must be a multiple of {}", extent_unit_bytes));
  return {};
}

} // namespace

} // namespace rocksdb

result<std::shared_ptr<bucket>> open_rocksdb_bucket(rocksdb_bucket_options options) {
  if (auto bad = rocksdb::check_options(options); !bad.ok())
    return fail(std::move(bad));
  auto files = rocksdb::open_bucket_files(options);
  if (!files)
    return fail(rocksdb::with_remedy(files.error(), options.path));
  auto path = options.path;
  auto e = std::make_shared<rocksdb::engine>(std::move(options), std::move(*files));
  auto loaded = e->load();
  auto opened = std::make_shared<rocksdb::rocksdb_bucket>(std::move(e));
  if (!loaded.ok())
    return fail(rocksdb::with_remedy(std::move(loaded), path));
  return opened;
}

result<std::shared_ptr<bucket>> open_rocksdb_bucket(
  rocksdb_bucket_options options, std::shared_ptr<memory_source> staging) {
  options.contiguous_staging = staging && staging->contiguous();
  return open_rocksdb_bucket(std::move(options));
}

} // namespace millrace::storage
