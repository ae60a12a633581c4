// The bucket in memory, the simplest kind: read it first to learn what every bucket does. Called by
// a provider's `tensor_store`.
#include <millrace/core/assert.hpp>
#include <millrace/core/clock.hpp>
#include <millrace/storage/gate.hpp>
#include <millrace/storage/layer_table.hpp>
#include <millrace/storage/memory/memory_bucket.hpp>
#include <millrace/storage/memory/tensor_blocks.hpp>
#include <millrace/storage/model_check.hpp>
#include <millrace/storage/recently_used.hpp>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

namespace millrace::storage {

namespace {

/// One published version. The table has one copy of the pointer, and every reader another.
/// Replacing or erasing a name drops the table's copy; the memory is returned with the last copy.
struct stored_model {
  model_record record;
  std::vector<std::uint64_t> tensor_bytes;
  std::shared_ptr<memory::tensor_blocks> memory;
  layer_lease layers;
};
using stored_model_ptr = std::shared_ptr<const stored_model>;

class memory_bucket final : public bucket, public std::enable_shared_from_this<memory_bucket> {
public:
  memory_bucket(const memory_bucket_options& options, std::shared_ptr<memory_source> memory);

  std::string_view kind() const noexcept override { return "memory"; }
  bucket_capabilities capabilities() const noexcept override {
    return {
      .durable = false,
      .in_place = true,
      .evicts = options_.full == when_full::evict,
      .at_once_bytes_max = account_->capacity_bytes()};
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

  std::uint64_t publish(stored_model model);

private:
  result<std::unique_ptr<reservation>> try_reserve(
    model_spec spec, const std::vector<described_layer>& layers);
  result<stored_model> take_space(
    model_spec& spec, const checked_spec& checked, const std::vector<described_layer>& layers);
  bool could_fit(const checked_spec& checked, const std::vector<described_layer>& layers) const;
  stored_model_ptr evict_one();
  bool contains(const std::string& name) const {
    std::lock_guard guard{mutex_};
    return models_.contains(name);
  }
  result<stored_model_ptr> find(const std::string& name, std::uint64_t version);
  status try_erase(const std::string& name, std::uint64_t version);
  status try_pin(const std::string& name, bool pinned);
  std::vector<model_summary> try_list(
    const std::string& prefix, const std::string& after, std::uint32_t count_max) const;

  const memory_bucket_options options_;
  const std::shared_ptr<memory_source> memory_;
  std::shared_ptr<space_account> account_;
  std::shared_ptr<space_account> descriptions_; // a part of it, in memory of the process
  std::shared_ptr<layer_table> layers_ = std::make_shared<layer_table>(descriptions_);
  gate gate_;

  mutable std::mutex mutex_;
  std::map<std::string, stored_model_ptr> models_;
  recently_used used_;
  std::uint64_t last_version_ = 0;
  std::uint64_t evictions_ = 0;
};

/// Space for one version: a single window with every tensor at its final address.
class memory_reservation final : public reservation {
public:
  memory_reservation(std::shared_ptr<memory_bucket> owner, stored_model model, gate::ticket ticket)
    : owner_(std::move(owner)), model_(std::move(model)), ticket_(std::move(ticket)),
      committed_(window_count() == 0) {}

  std::uint32_t window_count() const noexcept override {
    return model_.memory == nullptr || model_.memory->pieces().empty() ? 0 : 1;
  }

  std::uint64_t window_bytes() const noexcept override { return 0; }

  void acquire(std::uint32_t index, memory_block, completion<window> done) override {
    if (published_ || lent_ || index >= window_count())
      return done(misused(fmt::format("no window {} to acquire", index)));
    lent_ = true;
    done(window{index, model_.memory->pieces(), model_.memory});
  }

  void commit(std::uint32_t index, completion<void> done) override {
    if (published_ || index >= window_count() || !lent_ || committed_)
      return done(misused(fmt::format("window {} is not acquired", index)));
    committed_ = true;
    done({});
  }

  void publish(std::vector<std::uint64_t> digests, completion<std::uint64_t> done) override {
    if (published_ || !committed_)
      return done(misused(published_ ? "published already" : "a window is not committed"));
    if (auto bad = check_digests(model_.tensor_bytes, digests); !bad.ok())
      return done(misused(bad.detail()));
    published_ = true;
    model_.record.digests = std::move(digests);
    auto version = owner_->publish(std::move(model_));
    ticket_.reset();
    done(version);
  }

private:
  tl::unexpected<status> misused(const std::string& how) const {
    return fail(errc::invalid_argument, "model {}: {}", model_.record.spec.name, how);
  }

  std::shared_ptr<memory_bucket> owner_;
  stored_model model_;
  gate::ticket ticket_;
  bool lent_ = false;
  bool committed_;
  bool published_ = false;
};

/// A version open for reading. Its windows point at the stored tensors.
class memory_opened_model final : public opened_model {
public:
  explicit memory_opened_model(stored_model_ptr model) : model_(std::move(model)) {}

  const model_record& record() const noexcept override { return model_->record; }

  std::vector<std::vector<wanted>> plan(const std::vector<wanted>& ranges) const override {
    return plan_in_place(ranges);
  }

  std::uint64_t window_bytes() const noexcept override { return 0; }

  void fetch(std::vector<wanted> ranges, memory_block, completion<window> done) override {
    if (auto bad = check_ranges(model_->tensor_bytes, ranges); !bad.ok())
      return done(fail(bad.within("reading model " + model_->record.spec.name)));
    window lent;
    for (auto& range : ranges)
      if (range.length > 0)
        lent.pieces.push_back({range.tensor, range.tensor_offset, address(range), range.length});
    lent.hold = std::const_pointer_cast<stored_model>(model_);
    done(std::move(lent));
  }

private:
  std::byte* address(const wanted& range) const {
    auto& pieces = model_->memory->pieces();
    auto home = std::lower_bound(
      pieces.begin(), pieces.end(), range.tensor,
      [](const piece& p, std::uint32_t tensor) { return p.tensor < tensor; });
    MILLRACE_ASSERT(home != pieces.end() && home->tensor == range.tensor);
    return home->data + range.tensor_offset;
  }

  stored_model_ptr model_;
};

memory_bucket::memory_bucket(
  const memory_bucket_options& options, std::shared_ptr<memory_source> memory)
  : options_(options), memory_(std::move(memory)),
    account_(std::make_shared<space_account>(options_.capacity_bytes)),
    descriptions_(std::make_shared<space_account>(
      descriptions_bytes_of(options_), account_, "descriptions_max")) {}

tl::unexpected<status> closed() { return fail(errc::unavailable, "the memory bucket is closed"); }

void memory_bucket::reserve(
  model_spec spec, std::vector<described_layer> layers,
  completion<std::unique_ptr<reservation>> done) {
  done(try_reserve(std::move(spec), layers));
}

result<std::unique_ptr<reservation>> memory_bucket::try_reserve(
  model_spec spec, const std::vector<described_layer>& layers) {
  auto ticket = gate_.enter();
  if (!ticket)
    return closed();
  auto checked = check_spec(spec);
  if (!checked)
    return fail(checked.error());
  for (;;) {
    auto model = take_space(spec, *checked, layers);
    if (model)
      return std::make_unique<memory_reservation>(
        shared_from_this(), std::move(*model), std::move(ticket));
    auto full = model.error().code() == errc::no_space && options_.full == when_full::evict;
    if (!full || !could_fit(*checked, layers) || !evict_one())
      return fail(model.error().within("storing model " + spec.name));
  }
}

// Leaves the spec as it is on failure.
result<stored_model> memory_bucket::take_space(
  model_spec& spec, const checked_spec& checked, const std::vector<described_layer>& layers) {
  auto described = layers_->retain(checked.layers, layers);
  if (!described)
    return fail(described.error());
  auto memory = memory::tensor_blocks::take(
    *memory_, account_, descriptions_, checked.tensor_bytes, checked.metadata_bytes,
    is_always_taken(spec, [&] { return contains(spec.name); }));
  if (!memory)
    return fail(memory.error());
  return stored_model{
    {std::move(spec), 0, 0, {}}, checked.tensor_bytes, std::move(*memory), std::move(*described)};
}

// A model that is open keeps its memory, so evicting it would free nothing. The lock makes the
// counts exact: a first copy of the pointer is made under the lock only.
bool evictable(const stored_model_ptr& model) {
  return !model->record.spec.pinned && model.use_count() == 1 && model->memory.use_count() == 1;
}

// No model is evicted for one that would not fit even then.
bool memory_bucket::could_fit(
  const checked_spec& checked, const std::vector<described_layer>& layers) const {
  auto described = checked.metadata_bytes + layers_->new_bytes(checked.layers, layers);
  auto size = memory::room_bytes(checked.tensor_bytes) + described;
  auto free = account_->free_bytes();
  auto free_described = descriptions_->free_bytes();
  std::lock_guard guard{mutex_};
  for (auto& [name, model] : models_) {
    if (!evictable(model))
      continue;
    auto layer_bytes = layers_->unshared_bytes(model->layers.ids());
    free += model->memory->size_bytes() + layer_bytes;
    free_described += model->memory->metadata_bytes() + layer_bytes;
  }
  return size <= free && described <= free_described;
}

stored_model_ptr memory_bucket::evict_one() {
  std::lock_guard guard{mutex_};
  for (auto& name : used_.oldest_first()) {
    auto at = models_.find(name);
    auto& model = at->second;
    if (!evictable(model))
      continue;
    auto victim = model;
    models_.erase(at);
    used_.forget(std::string{victim->record.spec.name});
    ++evictions_;
    return victim;
  }
  return nullptr;
}

std::uint64_t memory_bucket::publish(stored_model model) {
  stored_model_ptr replaced; // dropped after the lock
  std::lock_guard guard{mutex_};
  auto after = std::exchange(model.record.spec.version_after, 0);
  model.record.version = last_version_ = std::max(last_version_, after) + 1;
  model.record.stored_at_ns = wall_clock_ns();
  auto name = model.record.spec.name;
  used_.put(name, model.record.spec.erased);
  auto& slot = models_[name];
  replaced = std::exchange(slot, std::make_shared<const stored_model>(std::move(model)));
  return last_version_;
}

void memory_bucket::open(
  std::string name, std::uint64_t version, completion<std::shared_ptr<opened_model>> done) {
  auto ticket = gate_.enter();
  if (!ticket)
    return done(closed());
  auto found = find(name, version);
  if (!found)
    return done(fail(found.error()));
  done(std::make_shared<memory_opened_model>(std::move(*found)));
}

result<stored_model_ptr> memory_bucket::find(const std::string& name, std::uint64_t version) {
  std::lock_guard guard{mutex_};
  auto at = models_.find(name);
  if (at == models_.end())
    return fail(no_such_model(name, version, 0));
  auto newest = at->second->record.version;
  if (version != 0 && version != newest)
    return fail(no_such_model(name, version, newest));
  used_.put(name, at->second->record.spec.erased);
  return at->second;
}

void memory_bucket::erase(std::string name, std::uint64_t version, completion<void> done) {
  auto ticket = gate_.enter();
  if (!ticket)
    return done(closed());
  auto outcome = try_erase(name, version);
  outcome.ok() ? done({}) : done(fail(outcome));
}

status memory_bucket::try_erase(const std::string& name, std::uint64_t version) {
  stored_model_ptr erased; // dropped after the lock
  std::lock_guard guard{mutex_};
  auto at = models_.find(name);
  auto newest = at == models_.end() ? 0 : at->second->record.version;
  if (newest == 0 || (version != 0 && version != newest))
    return no_such_model(name, version, newest);
  erased = std::move(at->second);
  models_.erase(at);
  used_.forget(name);
  return {};
}

void memory_bucket::pin(std::string name, bool pinned, completion<void> done) {
  auto ticket = gate_.enter();
  if (!ticket)
    return done(closed());
  auto outcome = try_pin(name, pinned);
  outcome.ok() ? done({}) : done(fail(outcome));
}

// Readers keep the record that they opened, so a changed copy replaces it.
status memory_bucket::try_pin(const std::string& name, bool pinned) {
  std::lock_guard guard{mutex_};
  auto at = models_.find(name);
  if (at == models_.end())
    return no_such_model(name, 0, 0);
  auto& old = *at->second;
  auto layers = layers_->retain(old.layers.ids(), {});
  MILLRACE_ASSERT(layers);
  stored_model changed{old.record, old.tensor_bytes, old.memory, std::move(*layers)};
  changed.record.spec.pinned = pinned;
  at->second = std::make_shared<const stored_model>(std::move(changed));
  return {};
}

void memory_bucket::list(
  std::string prefix, std::string after, std::uint32_t count_max,
  completion<std::vector<model_summary>> done) {
  auto ticket = gate_.enter();
  if (!ticket)
    return done(closed());
  done(try_list(prefix, after, count_max));
}

std::vector<model_summary> memory_bucket::try_list(
  const std::string& prefix, const std::string& after, std::uint32_t count_max) const {
  std::vector<model_summary> page;
  std::lock_guard guard{mutex_};
  auto at = after < prefix ? models_.lower_bound(prefix) : models_.upper_bound(after);
  for (; at != models_.end() && page.size() < count_max && at->first.starts_with(prefix); ++at)
    page.push_back(summarize(at->second->record));
  return page;
}

void memory_bucket::resolve(
  std::vector<layer_id> ids, completion<std::vector<described_layer>> done) {
  auto ticket = gate_.enter();
  if (!ticket)
    return done(closed());
  done(layers_->resolve(ids));
}

bucket_stats memory_bucket::stats() const {
  std::lock_guard guard{mutex_};
  return {used_.size(), account_->capacity_bytes(),  account_->used_bytes(),
          evictions_,   descriptions_->used_bytes(), used_.marks()};
}

status memory_bucket::close(std::uint32_t deadline_ms) {
  gate_.close();
  auto left = gate_.wait_empty(steady_clock::now() + std::chrono::milliseconds{deadline_ms});
  if (left == 0)
    return {};
  return {
    errc::deadline_exceeded,
    "closing the memory bucket: {} reservations were still open after {} ms", left, deadline_ms};
}

} // namespace

result<std::shared_ptr<bucket>> open_memory_bucket(
  memory_bucket_options options, std::shared_ptr<memory_source> memory) {
  if (!memory)
    return fail(errc::invalid_argument, "a memory bucket needs an arena");
  auto available = memory->capacity_bytes();
  if (options.capacity_bytes == 0)
    options.capacity_bytes = available;
  if (options.capacity_bytes > available)
    return fail(
      errc::invalid_argument, "a memory bucket cannot have {} bytes: its arena has {}",
      options.capacity_bytes, available);
  return std::make_shared<memory_bucket>(options, std::move(memory));
}

} // namespace millrace::storage
