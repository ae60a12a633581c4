// One rank of a training job that lockstep tests kill: lockstep_rank ADDRESS MODEL RANK WORLD
// BOARD. Prints `restored N same` once it knows where to go on from, and `durable N WAITED_US` when
// a step is done. Goes on when the service comes back, and goes back with the others when a rank
// was replaced, until it is killed.
#include "lockstep_board.hpp"
#include "shard_memory.hpp"

#include <millrace/runtime/client/client.hpp>
#include <millrace/tests/support/dice.hpp>

#include <unistd.h>

#include <atomic>
#include <iostream>

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

// One write for each line, since several threads say something.
void say(const std::string& what) {
  auto line = what + "\n";
  if (::write(STDOUT_FILENO, line.data(), line.size()) < 0)
    ::_exit(5);
}

// What a service that is gone, or comes back, answers. `busy`: a fellow whose save has failed is at
// the fence already, and does not save that step or a later one before this rank leaves its own.
bool may_pass(errc code) {
  return code == errc::unavailable || code == errc::peer_lost || code == errc::not_found ||
    code == errc::busy;
}

class rank_of_job {
public:
  rank_of_job(const std::string& address, checkpoint_options options, const std::string& board)
    : options_(std::move(options)), memory_(options_.model, options_.rank, options_.world_size),
      board_(board), client_(client::connect(address)),
      job_(client_.checkpointer(options_, memory_.views()).get()) {}

  /// Goes to the newest complete step with all ranks of the job, those that were replaced and those
  /// that live. They have registered, and their saves are over, before the first one restores.
  void resume() {
    do
      board_.join_round();
    while (!meet() || !restore_newest());
  }

  [[noreturn]] void train() {
    for (;;) {
      std::this_thread::sleep_for(std::chrono::microseconds{dice_.below(2'000)});
      ++step_;
      memory_.set(step_);
      auto mode = step_ % 5 == 0 ? save_mode::snapshot : save_mode::direct;
      job_.save(step_, mode).durable.then([this, step = step_](const result<save_receipt>& r) {
        if (r)
          say("durable " + std::to_string(step) + " " + std::to_string(r->times.slot_us));
        last_ended_ = step;
      });
      // A failure of this save, or of an earlier one that had been staged. The next step is saved
      // as usual.
      if (auto failed = job_.fence(); !failed.ok()) {
        say((may_pass(failed.code()) ? "failed " : "broke ") + failed.to_string());
        std::this_thread::sleep_for(5ms);
      }
      if (meet())
        continue;
      while (last_ended_ != step_)
        std::this_thread::sleep_for(1ms);
      resume();
    }
  }

private:
  bool meet() { return board_.meet(options_.rank, options_.world_size); }

  bool restore_newest() {
    auto same = true;
    step_ = 0;
    if (!job_.describe().get().complete_steps.empty()) {
      step_ = job_.restore().get().version;
      same = memory_.holds(step_);
    }
    say("restored " + std::to_string(step_) + (same ? " same" : " different"));
    return meet();
  }

  checkpoint_options options_;
  shard_memory memory_;
  lockstep_board board_;
  client client_;
  checkpointer job_;
  std::atomic<std::uint64_t> last_ended_ = 0; // the last save whose outcome was said
  std::uint64_t step_ = 0;
  dice dice_{static_cast<std::uint64_t>(::getpid())};
};

} // namespace

int main(int argc, char** argv) {
  if (argc < 6)
    return 2;
  checkpoint_options options;
  options.model = argv[2];
  options.rank = static_cast<std::uint32_t>(std::stoul(argv[3]));
  options.world_size = static_cast<std::uint32_t>(std::stoul(argv[4]));
  try {
    rank_of_job rank{argv[1], options, argv[5]};
    rank.resume();
    rank.train();
  } catch (const error& e) {
    say(std::string{"broke "} + e.what());
    return 3;
  }
}
