// The process that pool crash tests kill: does to one pool what its parent says.
// Protocol, one line each: a verb and its arguments in; "done" or an error out.

#include "crash_models.hpp"
#include "small_checkpoints.hpp"

#include <millrace/tests/support/held_completion.hpp>

#include <cstdio>
#include <iostream>

using namespace millrace;
using namespace millrace::testing;

namespace {

status obey(storage::checkpoint_store& at, const std::string& verb) {
  std::string model;
  std::uint32_t rank = 0, world_size = 1;
  std::uint64_t step = 0;
  if (verb == "repack") {
    auto report = repack(at);
    return report ? status{} : report.error();
  }
  std::cin >> model >> rank >> world_size;
  auto shard = small_shard(model, rank, world_size);
  if (verb == "enroll") {
    std::cin >> shard.life;
    auto enrolled = enroll(at, shard);
    return enrolled ? status{} : enrolled.error();
  }
  if (verb == "erase")
    return erase(at, model);
  std::cin >> step;
  if (verb == "leave") {
    at.leave(model, rank, step != 0);
    return {};
  }
  return save_either_way(at, shard, step);
}

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

// argv[1]: the pool's path, ':' and its capacity in MiB.
int main(int argc, char** argv) {
  if (argc != 2)
    return 2;
  std::string argument = argv[1];
  auto colon = argument.rfind(':');
  auto pool = storage::open_pool(
    small_pool(argument.substr(0, colon), std::stoull(argument.substr(colon + 1)) << 20));
  if (!pool) {
    std::cout << pool.error().to_string() << std::endl;
    return 1;
  }
  auto checkpoints = (*pool)->checkpoints();
  auto models = (*pool)->models();
  repository_verbs repository{*models};
  std::cout << "ready" << std::endl;
  for (std::string verb; std::cin >> verb;) {
    auto outcome = repository_verbs::knows(verb) ? repository.obey(verb) : obey(*checkpoints, verb);
    std::cout << (outcome.ok() ? "done" : outcome.to_string()) << std::endl;
  }
}
