// Loading the index, taking space, stopping. Called by the bucket and its reservations.
#include <millrace/core/kill_point.hpp>
#include <millrace/core/log.hpp>
#include <millrace/storage/model_check.hpp>
#include <millrace/storage/rocksdb/engine.hpp>
#include <millrace/storage/rocksdb/record_space.hpp>
#include <millrace/storage/rocksdb/stop_mark.hpp>

#include <algorithm>
#include <cstring>

namespace millrace::storage::rocksdb {

using namespace io;

engine::engine(rocksdb_bucket_options settings, bucket_files opened)
  : options(std::move(settings)), files(std::move(opened)), space(files.space),
    descriptions(std::make_shared<space_account>(
      options.descriptions_max_bytes, files.account, "descriptions_max")),
    pool(options.io_threads, "the rocksdb bucket"),
    commits(*files.db, *files.space, *files.reserve) {}

status closed_status(const engine& e) {
  return {errc::unavailable, "the rocksdb bucket {} is closed", e.options.path};
}

namespace {

// Layers that no model names. A crash between two batches leaves them behind.
index_batch orphans(
  const std::unordered_map<layer_id, described_layer>& described, const layer_table& layers) {
  index_batch batch;
  for (auto& [id, layer] : described)
    if (!layers.knows(id))
      batch.push_back({keys::layer(id), std::nullopt});
  return batch;
}

result<std::unordered_map<layer_id, described_layer>> read_layers(const index& db) {
  std::unordered_map<layer_id, described_layer> described;
  auto outcome = db.scan(keys::layers, [&](std::string_view key, std::string_view value) -> status {
    described_layer layer;
    if (key.size() != keys::layers.size() + layer.id.bytes.size())
      return {errc::corrupt_data, "a layer's key in the index has the wrong length"};
    std::memcpy(layer.id.bytes.data(), key.data() + keys::layers.size(), layer.id.bytes.size());
    auto bytes = reinterpret_cast<const std::byte*>(value.data());
    layer.description.assign(bytes, bytes + value.size());
    described.emplace(layer.id, std::move(layer));
    return {};
  });
  if (!outcome.ok())
    return fail(std::move(outcome));
  return described;
}

std::shared_ptr<layer_table> make_layer_table(
  std::shared_ptr<space_account> account, std::weak_ptr<engine> weak) {
  auto forgotten = [weak](const std::vector<layer_id>& ids) {
    auto e = weak.lock();
    // A start that fails drops its models, and changes nothing.
    if (!e || !e->loaded)
      return;
    change forget;
    forget.removes = true;
    // Another model may name a layer again by now. A stale layer is removed at the next start.
    forget.stage = [layers = e->layers.get(), ids](index_batch& batch) {
      for (auto& id : ids)
        if (!layers->knows(id))
          batch.push_back({keys::layer(id), std::nullopt});
      return status{};
    };
    forget.finish = [](const commit_outcome&) {};
    e->commits.submit(std::move(forget));
  };
  return std::make_shared<layer_table>(std::move(account), std::move(forgotten));
}

} // namespace

status engine::load() {
  layers = make_layer_table(descriptions, weak_from_this());
  auto described = read_layers(*files.db);
  if (!described)
    return described.error();
  std::map<std::uint64_t, version_ptr> found;
  auto outcome = files.db->scan(keys::records, [&](std::string_view key, std::string_view value) {
    return load_model(key.substr(keys::records.size()), value, *described, found);
  });
  if (!outcome.ok())
    return outcome.within("opening " + options.path);
  // Oldest first, since the order of use is not stored.
  for (auto& [version, model] : found)
    table.put(model);
  auto counter = files.db->get(keys::last_version);
  if (!counter)
    return counter.error();
  if (*counter) {
    auto number = decode_number(**counter, "the version counter of " + options.path);
    if (!number)
      return number.error();
    last_version = *number;
  }
  loaded = true;
  space->leases_free(true);
  auto stale = orphans(*described, *layers);
  if (!stale.empty())
    if (auto bad = files.db->write(stale); !bad.ok())
      return bad;
  if (auto bad = space->trim(); !bad.ok())
    return bad;
  if (auto bad = refill_reserve(); !bad.ok())
    log().warn("models are refused until there is space for the index: {}", bad.detail());
  return {};
}

status engine::load_model(
  std::string_view name, std::string_view value,
  const std::unordered_map<layer_id, described_layer>& layers_there,
  std::map<std::uint64_t, version_ptr>& found) {
  auto record = decode_record(name, value);
  if (!record)
    return record.error();
  auto context = "model " + std::string{name};
  auto checked = check_record(*record, name);
  if (!checked)
    return checked.error().within(context);
  std::vector<described_layer> offered;
  for (auto& id : checked->layers)
    if (auto at = layers_there.find(id); at != layers_there.end() && !layers->knows(id))
      offered.push_back(at->second);
  auto named = layers->retain_stored(checked->layers, offered);
  if (!named)
    return {errc::corrupt_data, "{}: the description of one of its layers is missing", context};
  layers->mark_saved(checked->layers);
  auto taken = claim_space(*space, *record, *checked);
  if (!taken)
    return taken.error().within(context);
  auto version = record->model.version;
  auto described = checked->summary_bytes + listed_bytes(taken->lease.extents());
  found[version] = std::make_shared<const stored_version>(stored_version{
    summarize(record->model), std::move(taken->lease), std::move(*named),
    account_lease{descriptions, described}});
  return {};
}

// Returns what is missing for these bytes.
std::uint64_t missing_in(const space_account& account, std::uint64_t size_bytes) {
  auto free = account.free_bytes();
  return size_bytes > free ? size_bytes - free : 0;
}

void engine::take_space(
  std::uint64_t size_bytes, std::uint64_t described_bytes, std::function<status()> attempt,
  std::uint32_t attempts_left, completion<void> done) {
  // Models must not use up the space in which the index writes that models are gone. Evicting does
  // not help: others may have filled the file system.
  if (auto bad = refill_reserve(); !bad.ok())
    return done(fail(std::move(bad)));
  auto outcome = attempt();
  if (outcome.ok())
    return done({});
  auto full = outcome.code() == errc::no_space && options.full == when_full::evict;
  if (!full || attempts_left == 0)
    return done(fail(std::move(outcome)));
  // The file system is full before the capacity is used up: only the bucket's own space helps.
  auto missing = missing_in(space->account(), size_bytes);
  auto missing_described = missing_in(*descriptions, described_bytes);
  if (missing == 0 && missing_described == 0)
    missing = size_bytes;
  auto retry = [self = shared_from_this(), size_bytes, described_bytes, attempt, attempts_left,
                done = std::move(done), refused = std::move(outcome)](status evicted) {
    if (!evicted.ok())
      return done(fail(evicted.code() == errc::no_space ? refused : evicted));
    self->pool.post([=](const status& stopped) {
      if (!stopped.ok())
        return done(fail(stopped));
      self->take_space(size_bytes, described_bytes, attempt, attempts_left - 1, done);
    });
  };
  evict(missing, missing_described, std::move(retry));
}

status engine::refill_reserve() {
  auto& reserve = *files.reserve;
  if (reserve.whole() || reserve.restore())
    return {};
  space->give_back();
  if (reserve.restore())
    return {};
  return {
    errc::no_space,
    "the file system of {} is full: the index needs {} bytes of it (index_reserve); erase models, "
    "or free space there",
    options.path, reserve.size_bytes()};
}

void engine::evict(
  std::uint64_t size_bytes, std::uint64_t described_bytes, std::function<void(status)> done) {
  auto names = std::make_shared<std::vector<std::string>>();
  change drop;
  drop.alone = true;
  drop.removes = true;
  drop.stage = [self = shared_from_this(), names, size_bytes,
                described_bytes](index_batch& batch) -> status {
    *names = self->table.victims(size_bytes, described_bytes, *self->layers);
    if (names->empty())
      return {errc::no_space, "nothing to evict"};
    for (auto& name : *names) {
      batch.push_back({keys::record(name), std::nullopt});
      batch.push_back({keys::stream(name), std::nullopt});
    }
    return {};
  };
  drop.finish = [self = shared_from_this(), names, done](const commit_outcome& outcome) {
    if (outcome.why.ok())
      for (auto& name : *names) {
        self->table.remove(name);
        ++self->evictions;
      }
    done(outcome.why);
  };
  commits.submit(std::move(drop));
}

status engine::leave_mark() {
  if (!loaded)
    return {};
  if (auto bad = files.db->settle(); !bad.ok())
    return bad;
  auto last_change = files.db->last_change();
  files.db.reset();
  auto outcome = write_stop_mark(options.path, last_change);
  if (outcome.code() == errc::no_space && files.reserve->release(0))
    outcome = write_stop_mark(options.path, last_change);
  return outcome;
}

void engine::stop() {
  space->leases_free(false);
  pool.stop();
  commits.stop();
  {
    // Readers do not wait for this lock, and hold it for microseconds.
    std::unique_lock none_reads{reading};
    if (auto bad = leave_mark(); !bad.ok())
      log().warn("the next start cannot tell whether the index is complete: {}", bad.detail());
    files.db.reset();
  }
  files.lock = {};
  std::vector<std::shared_ptr<void>> dropped;
  std::lock_guard guard{uncertain_mutex};
  dropped.swap(uncertain);
}

} // namespace millrace::storage::rocksdb
