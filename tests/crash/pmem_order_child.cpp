// Opens images of a pool that a power cut might have left, and says what the newest version is. A process of its own,
// since libpmemobj opens only one pool of an id at a time.
// Protocol: "IMAGE MODEL" in; the newest complete step (0 when there is none), or an error, out.

#include "small_checkpoints.hpp"

#include <iostream>

using namespace millrace;
using namespace millrace::testing;

namespace {

result<std::uint64_t> newest(const std::string& path, const std::string& model) {
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
  auto at = (*pool)->checkpoints();
  if (auto bad = check_all_versions(*at); !bad.ok())
    return fail(bad);
  auto version = open_version(*at, model, 0);
  auto step = version ? (*version)->record().version : 0;
  if (!version && version.error().code() != errc::not_found)
    return fail(version.error());
  version = fail(errc::ok, "");
  // It can be used on.
  auto shard = small_shard(model);
  if (auto enrolled = enroll(*at, shard); !enrolled)
    return fail(enrolled.error());
  if (auto bad = save_either_way(*at, shard, step + 100); !bad.ok())
    return fail(bad);
  if (auto bad = check_version(*at, shard); !bad.ok())
    return fail(bad);
  return step;
}

} // namespace

int main() {
  std::cout << "ready" << std::endl;
  for (std::string path, model; std::cin >> path >> model;) {
    auto step = newest(path, model);
    std::cout << (step ? std::to_string(*step) : step.error().to_string()) << std::endl;
  }
}
