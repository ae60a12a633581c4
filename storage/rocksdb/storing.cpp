// Writing a version's windows to segments, and publishing it. Called by the bucket.
#include <millrace/core/clock.hpp>
#include <millrace/core/kill_point.hpp>
#include <millrace/storage/io/staged_writer.hpp>
#include <millrace/storage/model_check.hpp>
#include <millrace/storage/rocksdb/storing.hpp>

#include <algorithm>
#include <set>
#include <utility>

namespace millrace::storage::rocksdb {

namespace {

/// A version that is being stored. The reservation and every job under way share it, so its space
/// and its layers are released only when no job touches them any more.
struct storing final : io::staged_writer {
  std::shared_ptr<engine> home;
  model_spec spec;
  std::vector<std::uint64_t> tensor_bytes;
  io::packing packing;
  bool inlined = false;
  space_lease space;
  layer_lease layers;
  account_lease described;
  gate::ticket ticket;
  std::string stream; // an inlined model's bytes

  status take(
    const space_need& need, std::uint64_t summary_bytes, const std::vector<layer_id>& ids,
    const std::vector<described_layer>& offered);
  void publish(std::vector<std::uint64_t> digests, completion<std::uint64_t> done);

  std::string doing() const override { return "storing model " + spec.name; }
  bool is_always_taken() const {
    return storage::is_always_taken(spec, [this] { return home->table.contains(spec.name); });
  }

protected:
  const io::packing& packed() const override { return packing; }
  io::io_pool& pool() const override { return home->pool; }
  jobs write_jobs(std::uint32_t index, const std::byte* data) override;

private:
  std::shared_ptr<storing> self() { return std::static_pointer_cast<storing>(shared_from_this()); }
  status may_publish(const std::vector<std::uint64_t>& digests);
  change make_change(std::shared_ptr<stored_record> record, completion<std::uint64_t> done);
  status stage(stored_record& record, index_batch& batch);
  void published(const record_ptr& record);
};

// Takes the layers, the summary and the space, or nothing.
status storing::take(
  const space_need& need, std::uint64_t summary_bytes, const std::vector<layer_id>& ids,
  const std::vector<described_layer>& offered) {
  auto named = home->layers->retain(ids, offered);
  if (!named)
    return named.error();
  auto taken = home->space->take(need);
  if (!taken)
    return taken.error();
  auto summary = account_lease::take(
    home->descriptions, summary_bytes + listed_bytes(taken->extents()), need.anyway);
  if (!summary)
    return summary.error();
  layers = std::move(*named);
  described = std::move(*summary);
  space = std::move(*taken);
  return {};
}

io::staged_writer::jobs storing::write_jobs(std::uint32_t index, const std::byte* data) {
  jobs work;
  if (inlined) {
    work.emplace_back([self = self(), data] {
      self->stream.assign(reinterpret_cast<const char*>(data), stream_end(self->packing));
      return status{};
    });
    return work;
  }
  auto& w = packing.windows[index];
  for (auto& run : locate(space.extents(), w.at, w.size_bytes, io_bytes_max))
    work.emplace_back([self = self(), run, data] {
      MILLRACE_KILL_POINT("rocksdb.commit.before_write");
      return self->home->space->write(run, data + run.from);
    });
  return work;
}

void storing::publish(std::vector<std::uint64_t> digests, completion<std::uint64_t> done) {
  if (auto bad = may_publish(digests); !bad.ok())
    return done(fail(bad.within(doing())));
  auto record = std::make_shared<stored_record>();
  record->model.digests = std::move(digests);
  home->commits.submit(make_change(std::move(record), std::move(done)));
}

status storing::may_publish(const std::vector<std::uint64_t>& digests) {
  if (auto bad = check_digests(tensor_bytes, digests); !bad.ok())
    return bad;
  return finish();
}

change storing::make_change(std::shared_ptr<stored_record> record, completion<std::uint64_t> done) {
  std::set<std::uint32_t> written_files;
  for (auto& e : space.extents())
    written_files.insert(e.file);
  change store;
  store.name = spec.name;
  store.files.assign(written_files.begin(), written_files.end());
  store.removes = is_always_taken();
  store.stage = [self = self(), record](index_batch& batch) { return self->stage(*record, batch); };
  store.finish = [self = self(), record, done = std::move(done)](const commit_outcome& outcome) {
    if (outcome.uncertain) {
      std::lock_guard guard{self->home->uncertain_mutex};
      self->home->uncertain.push_back(self);
    }
    if (!outcome.why.ok()) {
      self->ticket.reset();
      return done(fail(outcome.why.within("publishing model " + self->spec.name)));
    }
    self->published(record);
    done(record->model.version);
  };
  return store;
}

status storing::stage(stored_record& record, index_batch& batch) {
  record.model.spec = spec;
  auto after = std::exchange(record.model.spec.version_after, 0);
  record.model.version = home->last_version = std::max(home->last_version, after) + 1;
  record.model.stored_at_ns = wall_clock_ns();
  record.window_bytes = home->options.window_bytes;
  record.inlined = inlined;
  record.extents = space.extents();
  batch.push_back({keys::last_version, encode_number(record.model.version)});
  for (auto& layer : home->layers->unsaved(layers))
    batch.push_back(
      {keys::layer(layer.id),
       std::string{
         reinterpret_cast<const char*>(layer.description.data()), layer.description.size()}});
  batch.push_back({keys::record(spec.name), encode_record(record)});
  if (inlined && !stream.empty())
    batch.push_back({keys::stream(spec.name), encode_stream(record.model.version, stream)});
  else
    batch.push_back({keys::stream(spec.name), std::nullopt});
  return {};
}

void storing::published(const record_ptr& record) {
  home->layers->mark_saved(layers.ids());
  auto summary = summarize(record->model);
  auto replaced = home->table.put(std::make_shared<const stored_version>(
    stored_version{std::move(summary), std::move(space), std::move(layers), std::move(described)}));
  auto size = 256 + 128 * record->model.spec.tensors.tensors.size() +
    8 * record->model.digests.size() + record->model.spec.graph.size() +
    listed_bytes(record->extents);
  home->records.put(record, size);
  ticket.reset();
}

/// The reservation that the caller holds. Destroying it abandons the version.
class rocksdb_reservation final : public reservation {
public:
  explicit rocksdb_reservation(std::shared_ptr<storing> pending) : pending_(std::move(pending)) {}

  std::uint32_t window_count() const noexcept override { return pending_->window_count(); }
  std::uint64_t window_bytes() const noexcept override { return pending_->window_bytes(); }
  void acquire(std::uint32_t index, memory_block staging, completion<window> done) override {
    pending_->acquire(index, std::move(staging), std::move(done));
  }
  void commit(std::uint32_t index, completion<void> done) override {
    pending_->commit(index, std::move(done));
  }
  void publish(std::vector<std::uint64_t> digests, completion<std::uint64_t> done) override {
    pending_->publish(std::move(digests), std::move(done));
  }

private:
  std::shared_ptr<storing> pending_;
};

} // namespace

void reserve_model(
  const std::shared_ptr<engine>& e, model_spec spec, std::vector<described_layer> layers,
  gate::ticket ticket, completion<std::unique_ptr<reservation>> done) {
  auto checked = check_spec(spec);
  if (!checked)
    return done(fail(checked.error()));
  // Checked before anything that grows with the layout is made.
  auto& account = e->space->account();
  if (auto least = checked->size_bytes + checked->metadata_bytes; least > account.capacity_bytes())
    return done(fail(account.full(least).within("storing model " + spec.name)));
  auto pending = std::make_shared<storing>();
  pending->home = e;
  pending->spec = std::move(spec);
  pending->tensor_bytes = std::move(checked->tensor_bytes);
  pending->packing = io::pack(pending->tensor_bytes, e->options.window_bytes);
  pending->inlined = stream_end(pending->packing) <= e->options.inline_max_bytes;
  pending->ticket = std::move(ticket);
  space_need need{
    pending->inlined ? stream_end(pending->packing) : pending->packing.stream_bytes,
    pending->inlined, checked->metadata_bytes - checked->summary_bytes, pending->is_always_taken()};
  auto described = checked->summary_bytes + e->layers->new_bytes(checked->layers, layers);
  auto attempt = [pending, need, summary = checked->summary_bytes, ids = std::move(checked->layers),
                  layers = std::move(layers)] { return pending->take(need, summary, ids, layers); };
  auto taken = [pending, done](const result<void>& outcome) {
    if (!outcome)
      return done(fail(outcome.error().within("storing model " + pending->spec.name)));
    done(std::make_unique<rocksdb_reservation>(pending));
  };
  if (!need.anyway)
    return e->take_space(
      need.charged_bytes() + described, described, std::move(attempt), 16, std::move(taken));
  auto outcome = attempt();
  taken(outcome.ok() ? result<void>{} : fail(std::move(outcome)));
}

} // namespace millrace::storage::rocksdb
