// Asks for the shards' descriptions, divides the targets, and loads from some shards at a time.
#include <millrace/runtime/client/calls/checkpoint_call.hpp>
#include <millrace/runtime/client/calls/global_load.hpp>
#include <millrace/runtime/client/calls/global_plan.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

namespace millrace::runtime {

namespace {

// The most questions and loads under way of one load: enough to keep a provider busy.
constexpr std::size_t asked_at_once = 64;
constexpr std::size_t loads_at_once = 16;

// Begins tasks, some at a time. After a failure it begins no more. When those under way have ended,
// it reports the first failure, or none.
class task_row : public std::enable_shared_from_this<task_row> {
public:
  using starter = std::function<void(std::size_t index, completion<void> ended)>;

  task_row(
    std::size_t count, std::size_t at_once, starter start, std::function<void(const status&)> done)
    : count_(count), at_once_(at_once), start_(std::move(start)), done_(std::move(done)) {}

  void pump() {
    std::unique_lock lock{mutex_};
    // A task may end before it has begun, or meanwhile on another thread.
    if (std::exchange(pumping_, true))
      return;
    while (error_.ok() && next_ < count_ && in_flight_ < at_once_) {
      ++in_flight_;
      auto index = next_++;
      lock.unlock();
      start_(index, [self = shared_from_this()](const result<void>& r) { self->ended(r); });
      lock.lock();
    }
    pumping_ = false;
    if (in_flight_ > 0 || !done_)
      return;
    auto done = std::exchange(done_, nullptr);
    auto start = std::exchange(start_, nullptr);
    lock.unlock();
    done(error_);
  }

private:
  void ended(const result<void>& outcome) {
    {
      std::lock_guard guard{mutex_};
      --in_flight_;
      if (!outcome && error_.ok())
        error_ = outcome.error();
    }
    pump();
  }

  const std::size_t count_, at_once_;
  std::mutex mutex_;
  starter start_;
  std::function<void(const status&)> done_;
  std::size_t next_ = 0, in_flight_ = 0;
  status error_;
  bool pumping_ = false;
};

// The times at which the versions of a step were saved, by rank.
using step_versions = std::map<std::uint32_t, std::vector<std::uint64_t>>;

step_versions versions_of(const checkpoint_summary& model, std::uint64_t step) {
  step_versions out;
  for (auto& shard : model.shards)
    for (auto& slot : shard.slots)
      if (slot.state == slot_state::done && slot.step == step)
        out[shard.rank].push_back(slot.saved_at_ns);
  for (auto& [rank, times] : out)
    std::ranges::sort(times);
  return out;
}

class global_load : public std::enable_shared_from_this<global_load> {
public:
  global_load(
    std::shared_ptr<client_core> core, std::string model, std::vector<load_target> targets,
    const global_load_options& options)
    : core_(std::move(core)), model_(std::move(model)), targets_(std::move(targets)),
      step_(options.step), deadline_(core_->deadline_after(options.timeout)), plan_(targets_),
      done_(core_->make_promise<global_load_receipt>()) {}

  future<global_load_receipt> begin(const std::string& group, std::chrono::milliseconds timeout) {
    // The caller does not have the future yet, so it cannot have cancelled.
    static_cast<void>(done_.on_cancel([weak = weak_from_this()] {
      if (auto self = weak.lock())
        self->give_up();
    }));
    auto out = done_.get_future();
    find_keeper(
      core_, group, model_, step_, core_->search_deadline_after(timeout),
      [self = shared_from_this()](const result<std::size_t>& provider) {
        if (!provider)
          return self->end(fail(provider.error()));
        self->provider_ = *provider;
        self->describe();
      });
    return out;
  }

private:
  void describe() {
    describe_checkpoints(core_, provider_, model_, deadline_)
      .chain([self = shared_from_this()](const result<checkpoint_summary>& model) {
        model ? self->described(*model) : self->end(fail(model.error()));
      });
  }

  void described(const checkpoint_summary& model) {
    auto& complete = model.complete_steps;
    if (!step_)
      step_ = newest_step(model);
    if (!step_ || std::ranges::find(complete, *step_) == complete.end())
      return end(fail(
        errc::not_found, "model {}: {} is not complete; complete steps: {}", model_,
        step_ ? fmt::format("step {}", *step_) : "any step",
        complete.empty() ? "none" : fmt::format("{}", fmt::join(complete, ", "))));
    versions_ = versions_of(model, *step_);
    begin_row(
      model.shards.size(), asked_at_once,
      [ranks = ranks_of(model)](global_load& self, std::size_t i, completion<void> ended) {
        describe_shard(self.core_, self.provider_, self.model_, ranks[i], self.deadline_)
          .chain([self = self.shared_from_this(),
                  ended = std::move(ended)](const result<shard_spec>& shard) {
            if (shard)
              self->add(*shard);
            ended(shard ? result<void>{} : fail(shard.error()));
          });
      },
      &global_load::load);
  }

  static std::vector<std::uint32_t> ranks_of(const checkpoint_summary& model) {
    std::vector<std::uint32_t> out;
    for (auto& shard : model.shards)
      out.push_back(shard.rank);
    return out;
  }

  void add(const shard_spec& shard) {
    std::lock_guard guard{mutex_};
    plan_.add(shard);
  }

  void load() {
    auto divided = plan_.divide(targets_, *step_);
    if (!divided)
      return end(fail(divided.error().within("model " + model_)));
    receipt_.verified = true;
    for (auto& one : *divided)
      receipt_.ranks.push_back(one.first);
    auto parts = std::make_shared<shard_targets>(std::move(*divided));
    begin_row(
      receipt_.ranks.size(), loads_at_once,
      [parts](global_load& self, std::size_t i, completion<void> ended) {
        auto rank = self.receipt_.ranks[i];
        self.load_from(rank, std::move(parts->find(rank)->second), std::move(ended));
      },
      &global_load::check_versions);
  }

  void load_from(std::uint32_t rank, std::vector<load_target> targets, completion<void> ended) {
    auto call = load_call::make(core_);
    {
      std::lock_guard guard{mutex_};
      if (given_up_)
        return ended(fail(errc::cancelled, "model {}: another part of the load failed", model_));
      loading_.push_back(call);
    }
    call->outcome().chain(
      [self = shared_from_this(), ended = std::move(ended)](const result<load_receipt>& r) {
        r ? self->loaded(*r) : self->give_up();
        ended(r ? result<void>{} : fail(r.error()));
      });
    restore_into(
      call, core_, provider_, model_, rank, step_, std::move(targets), deadline_, with_extra::no);
  }

  void loaded(const load_receipt& r) {
    std::lock_guard guard{mutex_};
    receipt_.size_bytes += r.size_bytes;
    receipt_.verified &= r.verified;
    receipt_.provider = r.provider;
    if (
      !r.driver.empty() && std::ranges::find(receipt_.drivers, r.driver) == receipt_.drivers.end())
      receipt_.drivers.push_back(r.driver);
  }

  // Each request finds the step anew. When the same versions of it are there before and after all
  // of them, all have found the same ones: no version gets the time of another one.
  void check_versions() {
    describe_checkpoints(core_, provider_, model_, deadline_)
      .chain([self = shared_from_this()](const result<checkpoint_summary>& model) {
        if (!model)
          return self->end(fail(model.error()));
        if (versions_of(*model, *self->step_) != self->versions_)
          return self->end(fail(
            errc::unavailable,
            "model {}: step {} was saved again, or overwritten, while it was loaded; load again",
            self->model_, *self->step_));
        self->succeed();
      });
  }

  void succeed() {
    receipt_.model = model_;
    receipt_.step = *step_;
    if (receipt_.provider.empty())
      receipt_.provider = core_->entry(provider_).name;
    std::ranges::sort(receipt_.drivers);
    end(std::move(receipt_));
  }

  template <class Start>
  void begin_row(std::size_t count, std::size_t at_once, Start start, void (global_load::*then)()) {
    auto row = std::make_shared<task_row>(
      count, at_once,
      [self = shared_from_this(), start](std::size_t i, completion<void> ended) {
        start(*self, i, std::move(ended));
      },
      [self = shared_from_this(), then](const status& outcome) {
        outcome.ok() ? ((*self).*then)() : self->end(fail(outcome));
      });
    row->pump();
  }

  // Withdraws the memory of all parts. Those that have ended are not changed by that.
  void give_up() {
    std::vector<std::shared_ptr<load_call>> loading;
    {
      std::lock_guard guard{mutex_};
      given_up_ = true;
      loading.swap(loading_);
    }
    for (auto& call : loading)
      call->outcome().cancel();
  }

  void end(result<global_load_receipt> outcome) {
    {
      std::lock_guard guard{mutex_};
      loading_.clear();
    }
    done_.set(std::move(outcome));
  }

  const std::shared_ptr<client_core> core_;
  const std::string model_;
  const std::vector<load_target> targets_;
  std::optional<std::uint64_t> step_;
  const time_point deadline_;
  global_plan plan_;
  promise<global_load_receipt> done_;
  std::size_t provider_ = 0;
  step_versions versions_;

  std::mutex mutex_;
  bool given_up_ = false;
  std::vector<std::shared_ptr<load_call>> loading_;
  global_load_receipt receipt_;
};

} // namespace

future<global_load_receipt> begin_global_load(
  std::shared_ptr<client_core> core, std::string group, std::string model,
  std::vector<load_target> targets, const global_load_options& options) {
  return std::make_shared<global_load>(
           std::move(core), std::move(model), std::move(targets), options)
    ->begin(group, options.timeout);
}

} // namespace millrace::runtime
