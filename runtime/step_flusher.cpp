// One step of a model at a time; the newest complete one next.
#include <millrace/core/log.hpp>
#include <millrace/runtime/step_flusher.hpp>

namespace millrace::runtime {

namespace {

// Models that are looked at when a service starts.
constexpr std::uint32_t models_max = 100'000;

} // namespace

result<std::shared_ptr<step_flusher>> step_flusher::open(
  const config::provider_settings& p, std::shared_ptr<storage::checkpoint_store> store) {
  if (p.flush_to.empty())
    return std::shared_ptr<step_flusher>{};
  storage::flush_options options;
  options.directory = p.flush_to;
  options.keep = p.flush_keep;
  auto flusher = storage::version_flusher::open(std::move(options));
  if (!flusher)
    return fail(flusher.error().within("flush_to"));
  std::shared_ptr<step_flusher> made{new step_flusher};
  made->provider_ = p.name;
  made->every_ = p.flush_every;
  made->store_ = std::move(store);
  made->flusher_ = std::move(*flusher);
  made->catch_up();
  return made;
}

void step_flusher::catch_up() {
  store_->list({}, {}, models_max, [self = shared_from_this()](const auto& models) {
    for (std::size_t i = 0; models && i < models->size(); ++i)
      self->store_->open(
        (*models)[i].model, 0, {}, [self, model = (*models)[i].model](const auto& newest) {
          // A step that was copied before is not written again.
          if (newest)
            self->wish(model, (*newest)->record().version);
        });
  });
}

void step_flusher::saved(const actors::save_receipt& receipt) {
  if (receipt.complete)
    wish(receipt.model, receipt.step);
}

void step_flusher::wish(const std::string& model, std::uint64_t step) {
  if (step % every_ != 0)
    return;
  {
    std::lock_guard guard{mutex_};
    auto [at, idle] = models_.try_emplace(model);
    if (!idle) {
      at->second.next = step;
      return;
    }
    // Nobody else begins while the shards are counted.
    at->second.shards_left = 1;
  }
  begin(model, step);
}

void step_flusher::begin(const std::string& model, std::uint64_t step) {
  store_->describe(model, 0, [self = shared_from_this(), model, step](result<shard_spec> first) {
    if (!first)
      return self->copied(model, step, first.error());
    {
      std::lock_guard guard{self->mutex_};
      self->models_[model].shards_left = first->world_size;
    }
    for (std::uint32_t rank = 0; rank < first->world_size; ++rank)
      self->copy(model, rank, step);
  });
}

void step_flusher::copy(const std::string& model, std::uint32_t rank, std::uint64_t step) {
  auto done = [self = shared_from_this(), model, step](const status& outcome) {
    self->copied(model, step, outcome);
  };
  // Opened first: from here on the slot is not filled again.
  store_->open(
    model, rank, step,
    [self = shared_from_this(), model, rank,
     done](result<std::shared_ptr<storage::opened_model>> version) {
      if (!version)
        return done(version.error());
      self->store_->describe(
        model, rank, [self, version = std::move(*version), done](result<shard_spec> shard) {
          if (!shard)
            return done(shard.error());
          self->flusher_->flush(
            {shard->model, shard->rank, shard->world_size, shard->axes, version},
            [done](result<storage::flush_receipt> outcome) {
              done(outcome ? status{} : outcome.error());
            });
        });
    });
}

void step_flusher::copied(const std::string& model, std::uint64_t step, const status& outcome) {
  if (!outcome.ok())
    log().warn(
      "a checkpoint was not copied on provider={} model={} step={} why=\"{}\"", provider_, model,
      step, outcome.to_string());
  std::optional<std::uint64_t> next;
  {
    std::lock_guard guard{mutex_};
    auto& state = models_[model];
    if (--state.shards_left > 0)
      return;
    next = state.next;
    if (!next)
      models_.erase(model);
    else
      state = {.shards_left = 1, .next = {}};
  }
  if (next)
    begin(model, *next);
}

status step_flusher::close(std::uint32_t deadline_ms) { return flusher_->close(deadline_ms); }

} // namespace millrace::runtime
