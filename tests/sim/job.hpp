// A job in a simulated cluster: its ranks, and what they know of each other. Used by the scenario
// of checkpoints.
#pragma once

#include <millrace/tests/sim/cluster.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace millrace::sim {

/// The model that the job saves.
inline constexpr auto job_model = "job";

/// What the ranks of a job know of each other, as collective calls of a real job would tell them.
struct board {
  std::uint32_t world_size = 1;
  bool lockstep = true;              // otherwise ranks run ahead, as far as their saves let them
  bool cancels = false;              // saves several steps at once, and cancels some of them
  bool disturbed = false;            // something has happened, so that requests may fail
  std::vector<std::uint64_t> fences; // left by each rank
  std::map<std::uint64_t, std::set<std::uint32_t>> durable; // in this run of the job
  std::uint64_t least = 0;                                  // all ranks have seen `durable` for it

  // While it goes back to an earlier step, all ranks come, restore that step, and go on together.
  std::uint64_t times_back = 0;
  std::vector<int> came_back; // how far each rank has come: 1: it saves no more, 2: it has restored
  std::optional<std::uint64_t> goes_to;
  std::uint64_t promised_from = 0; // the first step of this run that counts

  void begin() {
    fences.assign(world_size, 0);
    came_back.assign(world_size, 2);
    durable.clear();
    promised_from = 0;
  }
  void go_back() {
    ++times_back;
    came_back.assign(world_size, 0);
    goes_to.reset();
  }
  bool all_came(int how_far) const {
    return std::ranges::all_of(came_back, [&](auto far) { return far >= how_far; });
  }
  // `durable` of earlier runs promises nothing.
  void went_to(std::uint64_t step) {
    goes_to = step;
    promised_from = step + 1;
    durable.clear();
    least = std::min(least, step);
  }

  // Tensors must not change while saves read them, so steps that are saved at once have the bytes
  // of the first of them.
  bool has_bytes_of_step_before(std::uint64_t step) const {
    return cancels && step % 4 != 0 && testing::dice{step}.percent(60);
  }
  std::uint64_t content(std::uint64_t step, std::uint32_t of_rank) const {
    while (has_bytes_of_step_before(step))
      --step;
    return step * 100 + of_rank;
  }

  // A save is asked for once more when one that is under way beside it is cancelled.
  nanoseconds times(nanoseconds of_one) const { return cancels ? 2 * of_one : of_one; }

  void saw_durable(std::uint32_t rank, std::uint64_t step, std::uint64_t at_times_back) {
    if (at_times_back != times_back || step < promised_from)
      return;
    auto& by = durable[step];
    by.insert(rank);
    if (by.size() == world_size)
      least = std::max(least, step);
  }
  bool all_left(std::uint64_t fence) const {
    return std::ranges::all_of(fences, [&](auto count) { return count >= fence; });
  }
};

/// A rank of a job, in a process of its own.
class rank {
public:
  rank(
    cluster& c, const provider_list& file, board& all, std::uint32_t number, std::size_t elements);
  ~rank() { end(); }

  /// Its process dies.
  void end();
  /// Ends in order after the present step.
  void stop() { stopping_ = true; }
  bool done() const { return flow_.front().done(); }
  void check() const;
  bool awaits_durable() const { return !awaited_.empty(); }
  process& in() { return process_; }

private:
  task train();
  task attach();
  task resume();
  void take_over(std::uint64_t step);
  void demand_bytes_of(std::uint64_t step) const;
  task save();
  pending_save begin_save();
  bool must_go_back() const { return times_back_ != all_.times_back; }
  task go_back();
  bool may_wait() const { return !over_ && !stopping_; }
  task until(std::function<bool()> holds);
  task choose_step();
  task restore(std::uint64_t step);
  task look_at(std::uint32_t other);
  task verify(std::uint32_t other, std::uint64_t step);
  task meet();
  checkpoint_options options() const;
  std::vector<tensor_view> views() { return views_of(memory_); }
  static std::vector<tensor_view> views_of(std::vector<std::uint64_t>& memory);
  void in_time(const std::string& what, nanoseconds since, nanoseconds most) const;
  void demand_may_fail(const std::string& doing, const status& bad) const;

  cluster& c_;
  board& all_;
  const std::uint32_t number_;
  process& process_;
  std::vector<std::uint64_t> memory_;
  const std::uint64_t must_restore_;
  std::uint64_t times_back_;
  const std::uint64_t step_time_max_ = c_.random.between(1, 10) * 1'000'000;
  std::optional<millrace::client> client_;
  std::optional<checkpointer> job_;
  std::vector<task> flow_;
  std::uint64_t step_ = 0;
  std::map<std::uint64_t, nanoseconds> awaited_; // steps whose `durable` has not come, since when
  bool over_ = false;
  bool stopping_ = false;
};

} // namespace millrace::sim
