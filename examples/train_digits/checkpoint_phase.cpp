// Trains with a checkpoint at every iteration, and continues from the newest one, however the last
// run ended.
#include "background_saver.hpp"
#include "setup.hpp"
#include "summary.hpp"
#include "training.hpp"
#include "weights_file.hpp"

#include <millrace/runtime/client/job.hpp>

#include <algorithm>
#include <csignal>

namespace train_digits {

using millrace::status;
using millrace::steady_clock;

namespace {

// The time that a trainer spent on its checkpoints, and the first failure.
struct account {
  milliseconds saving{0}, longest_save{0}, waiting{0};
  std::uint64_t saves = 0;
  status failed;

  void note(const status& outcome) {
    if (failed.ok())
      failed = outcome;
  }
};

void save_every_iteration(
  training_events& events, millrace::checkpointer& job, account& spent, std::uint64_t killed_at) {
  // The pull runs while the next batch goes forward; the parameters change only after it.
  events.after_iteration = [&, killed_at](std::uint64_t iteration) {
    auto begun = steady_clock::now();
    static_cast<void>(job.save(iteration));
    milliseconds took = steady_clock::now() - begun;
    spent.saving += took;
    spent.longest_save = std::max(spent.longest_save, took);
    ++spent.saves;
    // The pull is on its way: nothing is finished, flushed or said good-bye to.
    if (iteration == killed_at)
      std::raise(SIGKILL);
  };
  events.before_update = [&] {
    auto begun = steady_clock::now();
    spent.note(job.fence());
    spent.waiting += steady_clock::now() - begun;
  };
}

void tell_training(
  summary& tell, const phase_options& options, const account& spent, milliseconds took,
  double accuracy) {
  auto saves = static_cast<double>(std::max<std::uint64_t>(spent.saves, 1));
  tell.say(
    "{}: {} iterations with a checkpoint each in {:.0f} ms; save() took {:.1f} us on average, "
    "{:.0f} us at most; waited {:.1f} ms for pulls; {:.2f} % of the test images right",
    options.job, spent.saves, took.count(), 1000 * spent.saving.count() / saves,
    1000 * spent.longest_save.count(), spent.waiting.count(), 100 * accuracy);
}

// One rank of several, if torchrun, mpirun or srun has started this process.
millrace::result<millrace::checkpoint_options> shard_of(const std::string& model) {
  millrace::checkpoint_options shard;
  shard.model = model;
  auto launched = millrace::job::from_environment();
  if (!launched)
    return millrace::fail(launched.error());
  if (auto& job = *launched) {
    shard.rank = job->rank;
    shard.world_size = job->world_size;
    shard.life = job->life;
  }
  return shard;
}

} // namespace

status checkpoint_phase(const phase_options& options) {
  auto ready = set_up(options);
  if (!ready)
    return ready.error();
  summary tell{options.summary};

  mlp model{widths_for(10), 42};
  auto shard = shard_of(options.job);
  if (!shard)
    return shard.error();
  auto registered = ready->client.checkpointer(*shard, model.training_state()).result();
  if (!registered)
    return registered.error();
  auto job = *registered;
  training_plan plan{.epochs = options.epochs};
  if (!job.registration().model.complete_steps.empty()) {
    auto restored = job.restore().result();
    if (!restored)
      return restored.error();
    plan.learnt = restored->version;
    tell.say("{}: goes on after iteration {}", options.job, plan.learnt);
  }

  account spent;
  training_events events;
  save_every_iteration(events, job, spent, options.killed_at);
  auto begun = steady_clock::now();
  train(model, ready->digits.train, plan, events);
  milliseconds took = steady_clock::now() - begun;
  spent.note(job.close(true));
  if (!spent.failed.ok())
    return spent.failed;
  tell_training(tell, options, spent, took, model.accuracy(ready->digits.test));
  return write_weights(options.weights, model);
}

} // namespace train_digits
