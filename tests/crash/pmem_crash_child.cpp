// The process that pool crash tests kill. It does to one pool what its parent says.
// Protocol, one line each: a verb and its arguments in; "done" or an error out.

#include "crash_models.hpp"
#include "small_checkpoints.hpp"

#include <millrace/tests/support/held_completion.hpp>

#include <algorithm>
#include <iostream>

using namespace millrace;
using namespace millrace::testing;

namespace {

// The newest complete step but one; 0 when there is none.
std::uint64_t step_before(
  storage::checkpoint_store& at, const std::string& model, std::uint64_t step) {
  auto known = summary_of(at, model);
  std::uint64_t found = 0, saved_at_ns = 0;
  for (auto& s : known.shards)
    for (auto& v : s.slots) {
      auto complete = std::ranges::find(known.complete_steps, v.step) != known.complete_steps.end();
      if (v.state == slot_state::done && complete && v.step != step && v.saved_at_ns > saved_at_ns)
        found = v.step, saved_at_ns = v.saved_at_ns;
    }
  return found;
}

/// Verbs of checkpoints: one reader stays until it is told to let go.
class checkpoint_verbs {
public:
  explicit checkpoint_verbs(storage::checkpoint_store& at) : at_(at) {}

  /// The answer to a verb.
  std::string obey(const std::string& verb) {
    if (verb == "before") {
      std::string model;
      std::uint64_t step = 0;
      std::cin >> model >> step;
      return std::to_string(step_before(at_, model, step));
    }
    auto outcome = act(verb);
    return outcome.ok() ? "done" : outcome.to_string();
  }

private:
  status act(const std::string& verb) {
    std::string model;
    std::uint32_t rank = 0, world_size = 1;
    std::uint64_t step = 0;
    if (verb == "repack") {
      auto report = repack(at_);
      return report ? status{} : report.error();
    }
    if (verb == "close") {
      reader_.reset();
      return {};
    }
    std::cin >> model >> rank >> world_size;
    auto shard = small_shard(model, rank, world_size);
    if (verb == "enroll") {
      std::cin >> shard.life;
      auto enrolled = enroll(at_, shard);
      return enrolled ? status{} : enrolled.error();
    }
    if (verb == "erase")
      return erase(at_, model);
    std::cin >> step;
    if (verb == "forget_step")
      return erase(at_, model, step);
    if (verb == "open") {
      auto opened = open_version(at_, model, rank, step);
      reader_ = opened ? *opened : nullptr;
      return opened ? status{} : opened.error();
    }
    if (verb == "leave") {
      at_.leave(model, rank, step != 0);
      return {};
    }
    return save_either_way(at_, shard, step);
  }

  storage::checkpoint_store& at_;
  std::shared_ptr<storage::opened_model> reader_;
};

status pin(storage::bucket& at, const std::string& model, bool pinned) {
  auto outcome = await<void>([&](auto done) { at.pin(model, pinned, std::move(done)); });
  return outcome ? status{} : outcome.error();
}

/// Verbs of the repository: one reader stays while models are replaced and erased under it.
class repository_verbs {
public:
  explicit repository_verbs(storage::bucket& at) : at_(at) {}

  static bool knows(const std::string& verb) {
    return verb == "store" || verb == "forget" || verb == "pin" || verb == "read";
  }

  status obey(const std::string& verb) {
    std::string model;
    std::uint64_t number = 0;
    std::cin >> model >> number;
    if (verb == "forget")
      return erase(at_, model);
    if (verb == "pin")
      return pin(at_, model, number != 0);
    if (verb == "read") {
      auto opened = open(at_, model);
      reader_ = opened ? *opened : nullptr;
      return opened ? status{} : opened.error();
    }
    auto version = store(at_, crash_spec(model, number), crash_seed(model, number));
    return version ? status{} : version.error();
  }

private:
  storage::bucket& at_;
  std::shared_ptr<storage::opened_model> reader_;
};

} // namespace

// argv[1]: the pool's path, ':' and its capacity in MiB, which may be followed by 'r': low space is
// reclaimed.
int main(int argc, char** argv) {
  if (argc != 2)
    return 2;
  std::ios::sync_with_stdio(false); // a recorder sees what is printed
  std::string argument = argv[1];
  auto colon = argument.rfind(':');
  auto options =
    small_pool(argument.substr(0, colon), std::stoull(argument.substr(colon + 1)) << 20);
  if (argument.ends_with('r'))
    options.low_space = storage::when_low_space::reclaim;
  auto pool = storage::open_pool(options);
  if (!pool) {
    std::cout << pool.error().to_string() << std::endl;
    return 1;
  }
  auto checkpoints = (*pool)->checkpoints();
  auto models = (*pool)->models();
  checkpoint_verbs saved{*checkpoints};
  repository_verbs repository{*models};
  std::cout << "ready" << std::endl;
  for (std::string verb; std::cin >> verb;) {
    if (!repository_verbs::knows(verb)) {
      std::cout << saved.obey(verb) << std::endl;
      continue;
    }
    auto outcome = repository.obey(verb);
    std::cout << (outcome.ok() ? "done" : outcome.to_string()) << std::endl;
  }
}
