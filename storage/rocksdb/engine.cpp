// Loading the index, taking space, stopping. Called by the bucket and its reservations.
#include <millrace/core/kill_point.hpp>
#include <millrace/storage/io/packing.hpp>
#include <millrace/storage/model_check.hpp>
#include <millrace/storage/rocksdb/engine.hpp>

#include <algorithm>
#include <cstring>

namespace millrace::storage::rocksdb {

using namespace io;

engine::engine(rocksdb_bucket_options settings, bucket_files opened)
  : options(std::move(settings)), files(std::move(opened)), space(files.space),
    pool(options.io_threads, "the rocksdb bucket"),
    staging(options.staging, options.waiting_max, "the rocksdb bucket"),
    commits(*files.db, *files.space) {}

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

std::shared_ptr<layer_table> make_layer_table(std::weak_ptr<engine> weak) {
  return std::make_shared<layer_table>([weak](const std::vector<layer_id>& ids) {
    auto e = weak.lock();
    if (!e)
      return;
    change forget;
    // Another model may name a layer again by now. A stale layer is removed at the next start.
    forget.stage = [layers = e->layers.get(), ids](index_batch& batch) {
      for (auto& id : ids)
        if (!layers->knows(id))
          batch.push_back({keys::layer(id), std::nullopt});
      return status{};
    };
    forget.finish = [](const commit_outcome&) {};
    e->commits.submit(std::move(forget));
  });
}

} // namespace

status engine::load() {
  layers = make_layer_table(weak_from_this());
  auto described = read_layers(*files.db);
  if (!described)
    return described.error();
  std::map<std::uint64_t, version_ptr> loaded;
  auto outcome = files.db->scan(keys::records, [&](std::string_view key, std::string_view value) {
    return load_model(key.substr(keys::records.size()), value, *described, loaded);
  });
  if (!outcome.ok())
    return outcome.within("opening " + options.path);
  // Oldest first, since the order of use is not stored.
  for (auto& [version, model] : loaded)
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
  auto stale = orphans(*described, *layers);
  if (!stale.empty())
    if (auto bad = files.db->write(stale); !bad.ok())
      return bad;
  return space->trim();
}

status engine::load_model(
  std::string_view name, std::string_view value,
  const std::unordered_map<layer_id, described_layer>& described,
  std::map<std::uint64_t, version_ptr>& loaded) {
  auto record = decode_record(name, value);
  if (!record)
    return record.error();
  auto context = "model " + std::string{name};
  auto checked = check_spec(record->model.spec);
  if (!checked || record->model.spec.name != name)
    return {errc::corrupt_data, "{}: its record contradicts itself", context};
  std::vector<described_layer> offered;
  for (auto& id : checked->layers)
    if (auto at = described.find(id); at != described.end() && !layers->knows(id))
      offered.push_back(at->second);
  auto named = layers->retain(checked->layers, offered);
  if (!named)
    return {errc::corrupt_data, "{}: {}", context, named.error().detail()};
  layers->mark_saved(checked->layers);
  auto packed = pack(checked->tensor_bytes, record->window_bytes);
  auto lease = record->inlined ? space->claim_charge(stream_end(packed))
                               : space->claim(std::move(record->extents));
  if (!lease)
    return lease.error().within(context);
  if (!record->inlined && lease->charged_bytes() < packed.stream_bytes)
    return {errc::corrupt_data, "{}: its extents are too small for its tensors", context};
  auto version = record->model.version;
  loaded[version] = std::make_shared<const stored_version>(
    stored_version{summarize(record->model), std::move(*lease), std::move(*named)});
  return {};
}

void engine::take_space(
  std::uint64_t size_bytes, bool inlined, std::uint32_t attempts_left,
  completion<space_lease> done) {
  auto taken = inlined ? space->charge(size_bytes) : space->allocate(size_bytes);
  auto full = !taken && taken.error().code() == errc::no_space;
  if (!full || options.full == when_full::refuse || attempts_left == 0)
    return done(std::move(taken));
  auto free = space->capacity_bytes() - std::min(space->used_bytes(), space->capacity_bytes());
  // The file system is full before the capacity is used up: only the bucket's own space helps.
  auto missing = free < size_bytes ? size_bytes - free : size_bytes;
  auto retry = [self = shared_from_this(), size_bytes, inlined, attempts_left,
                done = std::move(done), refused = taken.error()](status evicted) {
    if (!evicted.ok())
      return done(fail(evicted.code() == errc::no_space ? refused : evicted));
    self->pool.post([=](const status& stopped) {
      if (!stopped.ok())
        return done(fail(stopped));
      self->take_space(size_bytes, inlined, attempts_left - 1, done);
    });
  };
  evict(missing, std::move(retry));
}

void engine::evict(std::uint64_t size_bytes, std::function<void(status)> done) {
  auto names = std::make_shared<std::vector<std::string>>();
  change drop;
  drop.alone = true;
  drop.stage = [self = shared_from_this(), names, size_bytes](index_batch& batch) -> status {
    *names = self->table.victims(size_bytes);
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

void engine::stop() {
  staging.stop();
  pool.stop();
  commits.stop();
  files.db.reset();
  files.lock = {};
  std::vector<std::shared_ptr<void>> dropped;
  std::lock_guard guard{uncertain_mutex};
  dropped.swap(uncertain);
}

} // namespace millrace::storage::rocksdb
