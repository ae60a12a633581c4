// A training job in a process of its own: trainer ADDRESS|CONFIG MIB STEPS [direct|snapshot].
// Says what it found, saves every step up to STEPS, and ends in order. What it trains is a function
// of the step.
#include <millrace/tests/system/connecting.hpp>
#include <millrace/tests/system/sample.hpp>

#include <algorithm>
#include <iostream>
#include <string>

using namespace millrace;
using testing::sample;

namespace {

double us_since(time_point begun) {
  return std::chrono::duration<double, std::micro>(steady_clock::now() - begun).count();
}

int train(const client& c, std::uint64_t mib, std::uint64_t steps, save_mode mode) {
  auto s = sample::of_mib(mib);
  checkpoint_options options;
  options.model = "m";
  auto job = c.checkpointer(options, s.views).get();
  std::uint64_t step = 0;
  if (!job.registration().model.complete_steps.empty()) {
    step = job.restore().get().version;
    auto expected = sample::of_mib(mib).fill(step);
    std::cout << "resumed " << step << (s.bytes == expected.bytes ? " same" : " different")
              << std::endl;
  } else {
    std::cout << "fresh" << std::endl;
  }
  std::vector<double> took_us;
  save_receipt last;
  while (step < steps) {
    s = std::move(s).fill(++step);
    auto begun = steady_clock::now();
    auto save = job.save(step, mode);
    took_us.push_back(us_since(begun));
    if (auto bad = job.fence(); !bad.ok()) {
      std::cout << "failed " << bad.to_string() << std::endl;
      return 3;
    }
    if (mode == save_mode::direct)
      last = save.durable.get();
    std::cout << "saved " << step << std::endl;
  }
  // By now every way to the node is open: this shows the one that is preferred.
  auto restored = job.restore().get();
  std::cerr << "restored by " << restored.driver << std::endl;
  auto closed = job.close(true);
  std::sort(took_us.begin(), took_us.end());
  if (!took_us.empty())
    std::cout << "save() took " << took_us[took_us.size() / 2] << " us, at most " << took_us.back()
              << " us; " << last.path << " by " << last.driver << std::endl;
  std::cout << "closed " << (closed.ok() ? "in order" : closed.to_string()) << std::endl;
  return closed.ok() ? 0 : 4;
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 4)
    return 2;
  try {
    bool snapshot = argc > 4 && std::string{argv[4]} == "snapshot";
    return train(
      testing::connect_to(argv[1]), std::stoull(argv[2]), std::stoull(argv[3]),
      snapshot ? save_mode::snapshot : save_mode::direct);
  } catch (const std::exception& e) {
    std::cout << "failed " << e.what() << std::endl;
    return 3;
  }
}
