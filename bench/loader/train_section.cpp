// Loops that take a batch and compute, in the manner of DLIO. Their accelerator utilisation is the
// part of the time in which they compute: the floor's part of a row, and of its peer. The floor is
// the same compute alone, since a sleep takes longer than it is asked to.
#include <millrace/bench/loader/loading.hpp>

#include <fmt/format.h>

#include <cmath>

namespace millrace::bench {

namespace {

constexpr double utilisation_goal = 0.9;
constexpr double round_s = 1; // of compute

// The workloads of DLIO, with fewer samples: a set takes this much memory three times, for the
// benchmark, in files and in the pool, and each ring has prefetch + 2 batches more. UNet3D has 7
// samples in a batch and computes 323 ms; 2 of them in 2/7 of the time are as many bytes a second.
struct workload {
  const char* name;
  size_spread sizes;
  taking how;
  std::uint64_t set_bytes;
  bool hides_reading; // its compute is so long that a DataLoader keeps up
};
constexpr workload workloads[] = {
  {"unet3d", {146'600'628, 68'341'808}, {2, 0.323 * 2 / 7, 2}, 1024 * mib, false},
  {"resnet50", {114'660, 136'076}, {64, 0.103, 4}, 256 * mib, true},
  {"cosmoflow", {2'828'486, 71'311}, {1, 0.0035, 4}, 512 * mib, false},
};

row row_of(
  const workload& of, const sample_files& files, const char* way, std::size_t steps,
  const samples& ours, const samples& computing) {
  row r;
  r.name = fmt::format("train/{}/{}", of.name, way);
  r.size_bytes = files.batch_bytes(of.how.batch);
  for (auto seconds : ours.values())
    r.ours.add(seconds / static_cast<double>(steps));
  r.floor_s = computing.median() / static_cast<double>(steps);
  return r;
}

void measure(const stage& s, const workload& of) {
  sample_files files{s.files, of.name, of.sizes, of.set_bytes};
  data_service at{s.files, of.set_bytes + 4 * region_bytes};
  auto c = at.connect();
  auto set = c.working_set(of.name);
  need(set.preload({files.path()}).result(), "preloading");
  auto steps = static_cast<std::size_t>(std::ceil(round_s / of.how.compute_s));
  training here{at, files, of.how, 1};
  contest all;
  auto& ours = all.add([&] { return here.take(steps); });
  auto& computing = all.add([&] {
    return seconds_of([&] {
      for (std::size_t i = 0; i < steps; ++i)
        of.how.compute();
    });
  });
  const samples* by_python = nullptr;
  named_samples loaders;
  std::optional<python_trainings> python;
  if (!s.options.no_peers) {
    python.emplace(at, false);
    by_python = python->add_ours(all, files, of.how, steps);
    loaders = python->add_peers(all, files, of.how, steps);
  }
  all.run(s.rounds(5));
  auto add = [&](const char* way, const samples& times) {
    auto r = row_of(of, files, way, steps, times, computing);
    if (!loaders.empty()) {
      auto [name, best_s] = fastest(loaders);
      r.peer = name;
      r.peer_s = best_s / static_cast<double>(steps);
    }
    for (auto& [name, peer] : loaders)
      r.others.emplace_back(name, peer->median() / static_cast<double>(steps));
    if (!s.options.quick)
      r.floor_min = utilisation_goal;
    if (!s.options.quick && !of.hides_reading)
      r.peer_floor_max = utilisation_goal;
    s.out.add(std::move(r));
  };
  add("cpp", ours);
  if (by_python)
    add("python", *by_python);
}

} // namespace

void train_section(const stage& s) {
  for (auto& one : workloads)
    if (s.wants(one.name) && (!s.options.quick || one.set_bytes <= 512 * mib))
      measure(s, one);
}

} // namespace millrace::bench
