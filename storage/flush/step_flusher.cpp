// The queue of steps to copy, and the jobs that copy them one at a time. Called by the checkpoint
// manager.
#include <millrace/core/clock.hpp>
#include <millrace/core/gathering.hpp>
#include <millrace/core/log.hpp>
#include <millrace/storage/await.hpp>
#include <millrace/storage/flush/step_flusher.hpp>
#include <millrace/storage/flush/version_flusher.hpp>
#include <millrace/storage/io/io_pool.hpp>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace millrace::storage::flush {

namespace {

// The most models that are looked at when a service starts.
constexpr std::uint32_t models_max = 100'000;
// The time in which a store must open its versions. Its index is in memory.
constexpr auto open_wait = std::chrono::minutes{1};
// The time for a copy to notice that it must stop.
constexpr auto stop_wait = std::chrono::seconds{1};

// The shards of one step, by rank, while they are being opened.
using opening = gathering<flush_request>;

void open_shard(
  checkpoint_store& store, const std::string& model, std::uint32_t rank, std::uint64_t step,
  const std::shared_ptr<opening>& into) {
  store.open(
    model, rank, {step, 0, version_part::all},
    [&store, model, rank, into](result<std::shared_ptr<opened_model>> version) {
      if (!version)
        return into->arrived(rank, fail(version.error()));
      store.describe(
        model, rank, [rank, into, version = std::move(*version)](result<shard_spec> shard) {
          into->arrived(rank, shard.map([&](auto& s) {
            return flush_request{s.model, s.rank, s.world_size, s.axes, version};
          }));
        });
    });
}

// Opens all shards of a step, or none. Open slots are not filled again. The store outlives the
// outcome.
void open_step(
  checkpoint_store& store, const std::string& model, std::uint64_t step,
  completion<std::vector<flush_request>> done) {
  store.describe(model, 0, [&store, model, step, done = std::move(done)](result<shard_spec> first) {
    if (!first)
      return done(fail(first.error()));
    auto into = std::make_shared<opening>(first->world_size, done);
    for (std::uint32_t rank = 0; rank < first->world_size; ++rank)
      open_shard(store, model, rank, step, into);
  });
}

} // namespace

class step_flusher::worker : public std::enable_shared_from_this<worker> {
public:
  worker(
    const step_flusher_options& o, std::shared_ptr<checkpoint_store> store, version_flusher flusher)
    : provider_(o.provider), directory_(o.flush.directory), every_(o.every),
      store_(std::move(store)), flusher_(std::move(flusher)) {}

  // Queues steps that became complete but were not copied before the service ended. A step is
  // opened when its turn comes, since there may be many, and no job saves yet.
  void catch_up() {
    store_->list({}, {}, models_max, [self = shared_from_this()](const auto& models) {
      for (std::size_t i = 0; models && i < models->size(); ++i)
        self->store_->open(
          (*models)[i].model, 0, {}, [self, model = (*models)[i].model](const auto& newest) {
            // A step that was copied before is not written again.
            if (newest && self->is_wanted(model, (*newest)->record().version))
              self->wait_in_line({model, (*newest)->record().version, {}});
          });
    });
  }

  // Opens the step at once, since its slot may be filled again later.
  void saved(const std::string& model, std::uint64_t step) {
    if (is_wanted(model, step))
      open_and_wait(model, step);
  }

  flush_counters counters() const {
    std::lock_guard guard{mutex_};
    auto now = counters_;
    now.waiting = models_.size();
    return now;
  }

  status close(std::chrono::milliseconds deadline) {
    std::unique_lock guard{mutex_};
    if (std::exchange(closing_, true))
      return {};
    auto idle = [this] { return models_.empty() && copying_ == 0; };
    auto drained = wait_until(changed_, guard, steady_clock::now() + deadline, idle);
    stopping_ = true;
    auto dropped = std::exchange(turns_, {});
    models_.clear();
    auto ended = wait_until(changed_, guard, steady_clock::now() + stop_wait, idle);
    guard.unlock();
    if (ended)
      thread_.stop();
    else
      thread_.abandon();
    if (drained)
      return {};
    return {
      errc::deadline_exceeded,
      ended ? "steps were left to copy at the end"
            : "a copy to " + directory_ + " does not end; its thread was detached"};
  }

private:
  struct turn {
    std::string model;
    std::uint64_t step = 0;
    std::vector<flush_request> shards; // empty: not opened yet
  };

  // False when the step is not to be copied, or waits for the model's present copy.
  bool is_wanted(const std::string& model, std::uint64_t step) {
    if (step % every_ != 0)
      return false;
    std::lock_guard guard{mutex_};
    if (closing_)
      return false;
    auto [at, idle] = models_.try_emplace(model);
    if (!idle)
      at->second = step;
    return idle;
  }

  void open_and_wait(const std::string& model, std::uint64_t step) {
    open_step(
      *store_, model, step,
      [self = shared_from_this(), model, step](result<std::vector<flush_request>> shards) {
        if (shards)
          self->wait_in_line({model, step, std::move(*shards)});
        else
          self->end_turn(model, step, shards.error());
      });
  }

  // Each turn has a job.
  void wait_in_line(turn one) {
    std::lock_guard guard{mutex_};
    if (stopping_)
      return;
    turns_.push_back(std::move(one));
    thread_.post([self = shared_from_this()](auto&) { self->copy_next(); });
  }

  void copy_next() {
    turn next;
    {
      std::lock_guard guard{mutex_};
      // It was stopped.
      if (turns_.empty())
        return;
      next = std::move(turns_.front());
      turns_.pop_front();
      ++copying_;
    }
    auto outcome = try_copy(next);
    end_turn(next.model, next.step, outcome);
    next = {};
    std::lock_guard guard{mutex_};
    --copying_;
    changed_.notify_all();
  }

  status try_copy(turn& one) {
    try {
      return copy(one);
    } catch (const std::exception& e) {
      return {errc::internal, e.what()};
    }
  }

  status copy(turn& one) {
    if (one.shards.empty())
      if (auto bad = open(one); !bad.ok())
        return bad;
    for (auto& shard : one.shards) {
      auto bytes = size_bytes(shard.version->record().spec.tensors);
      auto outcome = flusher_.flush(shard, stopping_);
      shard.version.reset(); // its slot may be filled again
      if (!outcome)
        return outcome.error();
      std::lock_guard guard{mutex_};
      counters_.bytes += bytes;
    }
    return {};
  }

  // Newer steps may have followed one that was not opened when it was found.
  status open(turn& one) {
    {
      std::lock_guard guard{mutex_};
      if (auto at = models_.find(one.model); at != models_.end() && at->second)
        one.step = *std::exchange(at->second, std::nullopt);
    }
    auto shards = await<std::vector<flush_request>>(
      open_wait, [&](auto done) { open_step(*store_, one.model, one.step, std::move(done)); });
    if (!shards)
      return shards.error();
    one.shards = std::move(*shards);
    return {};
  }

  void end_turn(const std::string& model, std::uint64_t step, const status& outcome) {
    std::optional<std::uint64_t> next;
    {
      std::lock_guard guard{mutex_};
      ++(outcome.ok() ? counters_.steps : counters_.failures);
      auto at = models_.find(model);
      if (at != models_.end())
        next = std::exchange(at->second, std::nullopt);
      if (at != models_.end() && !next)
        models_.erase(at);
      changed_.notify_all();
      if (stopping_)
        return;
    }
    if (!outcome.ok())
      log().warn(
        "a checkpoint was not copied provider={} model={} step={} why=\"{}\"", provider_, model,
        step, outcome.to_string());
    if (next)
      open_and_wait(model, *next);
  }

  const std::string provider_;
  const std::string directory_;
  const std::uint64_t every_;
  const std::shared_ptr<checkpoint_store> store_;
  const version_flusher flusher_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  /// Models with a step that is opened, waits or is copied, and the step that became complete since
  /// then.
  std::map<std::string, std::optional<std::uint64_t>> models_;
  std::deque<turn> turns_;
  flush_counters counters_;
  std::uint32_t copying_ = 0; // jobs; 0 or 1
  bool closing_ = false;
  std::atomic<bool> stopping_ = false;
  io::io_pool thread_{1, "the flusher"};
};

step_flusher::step_flusher(std::shared_ptr<worker> w) : worker_(std::move(w)) {}

step_flusher::~step_flusher() { static_cast<void>(close(0)); }

result<std::shared_ptr<step_flusher>> step_flusher::open(
  step_flusher_options options, std::shared_ptr<checkpoint_store> store) {
  auto flusher = version_flusher::open(options.flush);
  if (!flusher)
    return fail(flusher.error().within("flush_to"));
  auto made = std::make_shared<worker>(options, std::move(store), std::move(*flusher));
  made->catch_up();
  return std::shared_ptr<step_flusher>{new step_flusher{std::move(made)}};
}

void step_flusher::saved(const std::string& model, std::uint64_t step) {
  worker_->saved(model, step);
}

flush_counters step_flusher::counters() const { return worker_->counters(); }

status step_flusher::close(std::uint32_t deadline_ms) {
  return worker_->close(std::chrono::milliseconds{deadline_ms});
}

} // namespace millrace::storage::flush
