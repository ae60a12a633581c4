// Opens images of a pool that a power cut might have left, and says what is newest of a name. A
// process of its own, since libpmemobj opens only one pool of an id at a time.
// Protocol: "IMAGE checkpoint MODEL" or "IMAGE stored MODEL" in; the newest complete step, or the
// generation of what the repository has (0 when there is none), or an error, out.

#include "crash_models.hpp"
#include "small_checkpoints.hpp"

#include <iostream>

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr std::uint64_t later = 100; // than all that is stored under watch

result<std::uint64_t> newest_step_of(storage::pool& pool, const std::string& model) {
  auto at = pool.checkpoints();
  auto version = open_version(*at, model, 0);
  auto step = version ? (*version)->record().version : 0;
  if (!version && version.error().code() != errc::not_found)
    return fail(version.error());
  version = fail(errc::ok, "");
  // It can be used on.
  auto shard = small_shard(model);
  if (auto enrolled = enroll(*at, shard); !enrolled)
    return fail(enrolled.error());
  if (auto bad = save_either_way(*at, shard, step + later); !bad.ok())
    return fail(bad);
  if (auto bad = check_version(*at, shard); !bad.ok())
    return fail(bad);
  return step;
}

result<std::uint64_t> generation_of(storage::opened_model& opened, const std::string& model) {
  auto spec = opened.record().spec;
  spec.pinned = false;
  for (std::uint64_t generation = 1; generation < later; ++generation)
    if (spec == crash_spec(model, generation)) {
      auto same = check_ranges(opened, everything(spec.tensors), crash_seed(model, generation));
      return same.ok() ? result<std::uint64_t>{generation} : fail(same);
    }
  return fail(errc::corrupt_data, "the repository has what was never stored");
}

result<std::uint64_t> newest_generation_of(storage::pool& pool, const std::string& model) {
  auto at = pool.models();
  std::uint64_t generation = 0;
  if (auto opened = open(*at, model)) {
    auto found = generation_of(**opened, model);
    if (!found)
      return found;
    generation = *found;
  } else if (opened.error().code() != errc::not_found) {
    return fail(opened.error());
  }
  // It can be used on.
  if (auto stored = store(*at, crash_spec(model, later), crash_seed(model, later)); !stored)
    return fail(stored.error());
  return generation;
}

result<std::uint64_t> newest(
  const std::string& path, const std::string& kind, const std::string& model) {
  auto report = storage::check_pool(path, true);
  if (!report)
    return fail(report.error());
  if (!report->problems.empty())
    return fail(errc::corrupt_data, report->problems.front());
  auto options = small_pool(path, 0);
  options.create_if_missing = false;
  auto pool = storage::open_pool(options);
  if (!pool)
    return fail(pool.error());
  if (auto bad = check_all_versions(*(*pool)->checkpoints()); !bad.ok())
    return fail(bad);
  return kind == "stored" ? newest_generation_of(**pool, model) : newest_step_of(**pool, model);
}

} // namespace

int main() {
  std::cout << "ready" << std::endl;
  for (std::string path, kind, model; std::cin >> path >> kind >> model;) {
    auto found = newest(path, kind, model);
    std::cout << (found ? std::to_string(*found) : found.error().to_string()) << std::endl;
  }
}
