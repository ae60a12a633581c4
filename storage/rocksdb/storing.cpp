// Windows lent, written on, and published.
#include <millrace/core/clock.hpp>
#include <millrace/core/kill_point.hpp>
#include <millrace/storage/io/packing.hpp>
#include <millrace/storage/model_check.hpp>
#include <millrace/storage/rocksdb/storing.hpp>

#include <cstring>
#include <set>

namespace millrace::storage::rocksdb {

namespace {

/// A version on its way in. The reservation and every job under way share it, so its space and its
/// layers go only when nothing touches them any more.
struct pending_version : std::enable_shared_from_this<pending_version> {
  enum class phase : std::uint8_t { idle, asked, lent, committing, committed };
  struct slot {
    phase at = phase::idle;
    memory_block memory;
  };

  std::shared_ptr<engine> home;
  model_spec spec;
  std::vector<std::uint64_t> tensor_bytes;
  packing packed;
  bool inlined = false;
  space_lease space;
  layer_lease layers;
  gate::ticket ticket;
  std::string stream; // an inlined model's bytes

  std::mutex mutex;
  std::vector<slot> slots;
  bool publishing = false;
  status failed; // the first window that could not be written

  void acquire(std::uint32_t index, std::weak_ptr<void> asker, completion<window> done);
  void commit(std::uint32_t index, completion<void> done);
  void publish(std::vector<std::uint64_t> digests, completion<std::uint64_t> done);

private:
  tl::unexpected<status> misused(const std::string& how) const {
    return fail(errc::invalid_argument, "storing model " + spec.name + ": " + how);
  }
  bool advance(std::uint32_t index, phase from, phase to);
  window lend(std::uint32_t index, memory_block memory);
  void write_window(std::uint32_t index, std::byte* data, std::function<void(status)> done);
  void written(std::uint32_t index, const status& outcome);
  status may_publish(const std::vector<std::uint64_t>& digests);
  change make_change(std::shared_ptr<stored_record> record, completion<std::uint64_t> done);
  status stage(stored_record& record, index_batch& batch);
  void published(const record_ptr& record);
};

bool pending_version::advance(std::uint32_t index, phase from, phase to) {
  std::lock_guard guard{mutex};
  if (publishing || index >= slots.size() || slots[index].at != from)
    return false;
  slots[index].at = to;
  return true;
}

// -- lending ----------------------------------------------------------------------------------

void pending_version::acquire(
  std::uint32_t index, std::weak_ptr<void> asker, completion<window> done) {
  if (!advance(index, phase::idle, phase::asked))
    return done(misused("window " + std::to_string(index) + " cannot be acquired now"));
  auto lent = [self = shared_from_this(), index,
               done = std::move(done)](result<memory_block> memory) {
    if (!memory) {
      self->advance(index, phase::asked, phase::idle);
      return done(fail(memory.error().within("storing model " + self->spec.name)));
    }
    done(self->lend(index, std::move(*memory)));
  };
  home->staging.acquire(packed.windows[index].size_bytes, std::move(asker), std::move(lent));
}

window pending_version::lend(std::uint32_t index, memory_block memory) {
  auto lent = io::lend(packed, index, memory);
  std::lock_guard guard{mutex};
  slots[index].memory = std::move(memory);
  slots[index].at = phase::lent;
  return lent;
}

// -- writing ----------------------------------------------------------------------------------

void pending_version::commit(std::uint32_t index, completion<void> done) {
  if (!advance(index, phase::lent, phase::committing))
    return done(misused("window " + std::to_string(index) + " is not acquired"));
  auto data = slots[index].memory.data;
  io::clear_gaps(packed, index, data);
  write_window(
    index, data,
    [self = shared_from_this(), index, done = std::move(done)](status outcome) mutable {
      self->written(index, outcome);
      if (!outcome.ok())
        outcome = outcome.within("storing model " + self->spec.name);
      self.reset();
      outcome.ok() ? done({}) : done(fail(std::move(outcome)));
    });
}

void pending_version::write_window(
  std::uint32_t index, std::byte* data, std::function<void(status)> done) {
  std::vector<std::function<status()>> jobs;
  if (inlined) {
    jobs.emplace_back([self = shared_from_this(), data] {
      self->stream.assign(reinterpret_cast<const char*>(data), stream_end(self->packed));
      return status{};
    });
  } else {
    auto& w = packed.windows[index];
    for (auto& run : locate(space.extents(), w.at, w.size_bytes, io_bytes_max))
      jobs.emplace_back([self = shared_from_this(), run, data] {
        MILLRACE_KILL_POINT("rocksdb.commit.before_write");
        return self->home->space->write(run, data + run.from);
      });
  }
  home->pool.post_all(std::move(jobs), std::move(done));
}

void pending_version::written(std::uint32_t index, const status& outcome) {
  memory_block returned; // after the lock
  std::lock_guard guard{mutex};
  returned = std::move(slots[index].memory);
  slots[index].at = phase::committed;
  if (failed.ok() && !outcome.ok())
    failed = outcome;
}

// -- publishing -------------------------------------------------------------------------------

void pending_version::publish(std::vector<std::uint64_t> digests, completion<std::uint64_t> done) {
  if (auto bad = may_publish(digests); !bad.ok())
    return done(fail(bad.within("storing model " + spec.name)));
  auto record = std::make_shared<stored_record>();
  record->model.digests = std::move(digests);
  home->commits.submit(make_change(std::move(record), std::move(done)));
}

status pending_version::may_publish(const std::vector<std::uint64_t>& digests) {
  if (auto bad = check_digests(tensor_bytes, digests); !bad.ok())
    return bad;
  std::lock_guard guard{mutex};
  if (publishing)
    return {errc::invalid_argument, "published already"};
  for (auto& s : slots)
    if (s.at != phase::committed)
      return {errc::invalid_argument, "a window is not committed"};
  publishing = failed.ok();
  return failed;
}

change pending_version::make_change(
  std::shared_ptr<stored_record> record, completion<std::uint64_t> done) {
  std::set<std::uint32_t> written_files;
  for (auto& e : space.extents())
    written_files.insert(e.file);
  change store;
  store.name = spec.name;
  store.files.assign(written_files.begin(), written_files.end());
  store.stage = [self = shared_from_this(), record](index_batch& batch) {
    return self->stage(*record, batch);
  };
  store.finish = [self = shared_from_this(), record,
                  done = std::move(done)](const commit_outcome& outcome) {
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

status pending_version::stage(stored_record& record, index_batch& batch) {
  record.model.spec = spec;
  record.model.version = ++home->last_version;
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

void pending_version::published(const record_ptr& record) {
  home->layers->mark_saved(layers.ids());
  auto summary = summarize(record->model);
  auto replaced = home->table.put(std::make_shared<const stored_version>(
    stored_version{std::move(summary), std::move(space), std::move(layers)}));
  auto size = 256 + 128 * record->model.spec.tensors.tensors.size() +
    8 * record->model.digests.size() + record->model.spec.graph.size();
  home->records.put(record, size);
  ticket.reset();
}

/// What the caller holds. Dropping it abandons: windows still waited for are not lent any more.
class rocksdb_reservation final : public reservation {
public:
  explicit rocksdb_reservation(std::shared_ptr<pending_version> pending)
    : pending_(std::move(pending)) {}

  ~rocksdb_reservation() override {
    asker_.reset();
    pending_->home->staging.nudge();
  }

  std::uint32_t window_count() const noexcept override {
    return static_cast<std::uint32_t>(pending_->packed.windows.size());
  }
  void acquire(std::uint32_t index, completion<window> done) override {
    pending_->acquire(index, asker_, std::move(done));
  }
  void commit(std::uint32_t index, completion<void> done) override {
    pending_->commit(index, std::move(done));
  }
  void publish(std::vector<std::uint64_t> digests, completion<std::uint64_t> done) override {
    pending_->publish(std::move(digests), std::move(done));
  }

private:
  std::shared_ptr<pending_version> pending_;
  std::shared_ptr<void> asker_ = std::make_shared<char>();
};

} // namespace

void reserve_model(
  const std::shared_ptr<engine>& e, model_spec spec, std::vector<described_layer> layers,
  gate::ticket ticket, completion<std::unique_ptr<reservation>> done) {
  auto checked = check_spec(spec);
  if (!checked)
    return done(fail(checked.error()));
  // Before anything is made that grows with its layout.
  if (auto bad = e->space->check_possible(checked->size_bytes); !bad.ok())
    return done(fail(bad.within("storing model " + spec.name)));
  auto named = e->layers->retain(std::move(checked->layers), layers);
  if (!named)
    return done(fail(named.error().within("storing model " + spec.name)));
  auto pending = std::make_shared<pending_version>();
  pending->home = e;
  pending->spec = std::move(spec);
  pending->tensor_bytes = std::move(checked->tensor_bytes);
  pending->packed = pack(pending->tensor_bytes, e->options.window_bytes);
  pending->inlined = stream_end(pending->packed) <= e->options.inline_max_bytes;
  pending->layers = std::move(*named);
  pending->ticket = std::move(ticket);
  pending->slots.resize(pending->packed.windows.size());
  auto size = pending->inlined ? stream_end(pending->packed) : pending->packed.stream_bytes;
  e->take_space(size, pending->inlined, 16, [pending, done](result<space_lease> space) {
    if (!space)
      return done(fail(space.error().within("storing model " + pending->spec.name)));
    pending->space = std::move(*space);
    done(std::make_unique<rocksdb_reservation>(pending));
  });
}

} // namespace millrace::storage::rocksdb
