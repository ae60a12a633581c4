// The training job that service crash tests kill, or whose service they kill: saver ADDRESS MODEL
// STEPS [stay]. Both ranks of a world of two. Prints `restored N same` once it knows where to go on
// from, `pending N` before it asks for a step and `durable N` when that is done; goes on when the
// service comes back; with `stay`, until it is killed.
#include "shard_memory.hpp"

#include <millrace/runtime/client/client.hpp>

#include <iostream>
#include <thread>

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr std::uint32_t world_size = 2;
constexpr auto patience = std::chrono::seconds{60};

class saver {
public:
  saver(std::string address, std::string model)
    : address_(std::move(address)), model_(std::move(model)) {
    for (std::uint32_t rank = 0; rank < world_size; ++rank)
      memory_.emplace_back(model_, rank, world_size);
  }

  // Registers and takes the newest step; says which, and 0 when there is none.
  void resume() {
    if (jobs_.empty())
      enroll();
    step_ = 0;
    bool same = true;
    if (!jobs_.front().describe().get().complete_steps.empty()) {
      step_ = jobs_.front().restore().get().version;
      jobs_.back().restore(step_).get();
      for (auto& m : memory_)
        same = same && m.holds(step_);
    }
    say("restored", same ? " same" : " different");
  }

  void save_next() {
    for (auto& m : memory_)
      m.set(step_ + 1);
    ++step_;
    say("pending");
    auto mode = step_ % 3 == 0 ? save_mode::snapshot : save_mode::direct;
    std::vector<pending_save> saves;
    for (auto& job : jobs_)
      saves.push_back(job.save(step_, mode));
    for (auto& one : saves)
      one.durable.wait_for(patience);
    for (auto& one : saves)
      one.durable.get();
    say("durable");
  }

  // Waits until the memory may be changed again. The saves themselves report failures.
  void settle() {
    for (auto& job : jobs_)
      static_cast<void>(job.fence());
  }

  bool close() {
    bool in_order = true;
    for (auto& job : jobs_)
      in_order = job.close(true).ok() && in_order;
    return in_order;
  }

  std::uint64_t step() const { return step_; }

private:
  void enroll() {
    if (!client_)
      client_ = client::connect(address_);
    std::vector<checkpointer> jobs;
    for (std::uint32_t rank = 0; rank < world_size; ++rank) {
      checkpoint_options options;
      options.model = model_;
      options.rank = rank;
      options.world_size = world_size;
      jobs.push_back(client_->checkpointer(options, memory_[rank].views()).get());
    }
    jobs_ = std::move(jobs);
  }

  void say(const std::string& what, const std::string& more = {}) const {
    std::cout << what + " " + std::to_string(step_) + more << std::endl;
  }

  std::string address_, model_;
  std::vector<shard_memory> memory_;
  std::optional<client> client_;
  std::vector<checkpointer> jobs_;
  std::uint64_t step_ = 0;
};

// Returns true for what a service answers that is gone or comes back. Other errors are failures.
bool may_pass(errc code) {
  return code == errc::unavailable || code == errc::peer_lost || code == errc::not_found;
}

int run(saver& s, std::uint64_t steps, bool stay) {
  auto give_up_at = std::chrono::steady_clock::now() + patience;
  for (bool resumed = false; stay || !resumed || s.step() < steps;)
    try {
      if (!resumed)
        s.resume();
      resumed = true;
      if (stay || s.step() < steps)
        s.save_next();
      give_up_at = std::chrono::steady_clock::now() + patience;
    } catch (const error& e) {
      s.settle();
      resumed = false;
      std::cerr << e.what() << std::endl;
      if (!may_pass(e.code()) || std::chrono::steady_clock::now() > give_up_at) {
        std::cout << "failed " << e.what() << std::endl;
        return 3;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds{5});
    }
  auto in_order = s.close();
  std::cout << "closed" << std::endl;
  return in_order ? 0 : 4;
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 4)
    return 2;
  saver s{argv[1], argv[2]};
  return run(s, std::stoull(argv[3]), argc > 4);
}
