// Batches that a loader has read ahead, as a training takes them that does nothing else.
#include <millrace/bench/loader/loading.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <thread>

namespace millrace::bench {

namespace {

constexpr std::size_t reader_counts[] = {1, 2, 4};
constexpr size_spread mixed{600'000, 600'000};
// A round has many more batches than are read ahead: those begun at its end are nobody's time.
constexpr std::size_t rounds_of_reads = 4;

struct outcome {
  std::size_t batches = 0;
  std::vector<std::pair<std::size_t, const samples*>> ours; // by the number of readers
  const samples* python = nullptr;
  named_samples floors, loaders;
};

// Times are those in which each reader takes one batch.
row row_of(
  const outcome& all, const sample_files& of, const std::string& way, std::size_t readers,
  const samples& ours) {
  auto of_one = [&](double s) { return s / static_cast<double>(all.batches); };
  row r;
  r.name = fmt::format("next/{}/{}/{}-readers", of.name(), way, readers);
  r.size_bytes = of.batch_bytes(batch_size) * readers;
  for (auto seconds : ours.values())
    r.ours.add(of_one(seconds));
  r.floor_s = of_one(fastest(all.floors).second) * static_cast<double>(readers);
  if (readers > 1 || all.loaders.empty())
    return r;
  auto [name, best_s] = fastest(all.loaders);
  r.peer = name;
  r.peer_s = of_one(best_s);
  for (auto& [other, times] : all.loaders)
    r.others.emplace_back(other, of_one(times->median()));
  return r;
}

void add_rows(
  const outcome& all, const sample_files& of, double floor_goal, bool has_goals, report& out) {
  auto add = [&](const char* way, std::size_t readers, const samples& ours, double floor_min) {
    auto r = row_of(all, of, way, readers, ours);
    if (has_goals && readers == 1)
      r.ratio_min = loader_goal;
    if (has_goals && readers == 1 && floor_min > 0)
      r.floor_min = floor_min;
    out.add(std::move(r));
  };
  for (auto& [readers, ours] : all.ours)
    add("cpp", readers, *ours, floor_goal);
  if (all.python)
    add("python", 1, *all.python, 0);
}

// A node of its own: the memory of a set is free only when all readers of it are gone.
void measure(const stage& s, const sample_files& of, double floor_goal) {
  data_service at{s.files, s.set_bytes() + 4 * region_bytes};
  auto c = at.connect();
  auto set = c.working_set(of.name());
  need(set.preload({of.path()}).result(), "preloading");
  outcome got;
  got.batches = rounds_of_reads * of.batches_of_round();
  contest all;
  std::vector<std::unique_ptr<training>> trainings;
  for (auto readers : reader_counts) {
    if (readers * batch_size > of.samples())
      continue; // an epoch has no batch for each
    trainings.push_back(std::make_unique<training>(at, of, taking{}, readers));
    got.ours.emplace_back(
      readers, &all.add([&one = *trainings.back(), &got] { return one.take(got.batches); }));
  }
  auto epoch = std::max<std::size_t>(of.samples() / batch_size, 1);
  gather_floor one{of, 1, epoch},
    each{of, std::max(std::thread::hardware_concurrency(), 1u), epoch};
  for (auto* floor : {&one, &each})
    got.floors.emplace_back("", &all.add([floor, &got] { return floor->gather(got.batches); }));
  std::optional<python_trainings> python;
  if (!s.options.no_peers) {
    python.emplace(at, of.name() == kinds.front().name);
    got.python = python->add_ours(all, of, {}, got.batches);
    got.loaders = python->add_peers(all, of, {}, got.batches);
  }
  all.run(s.rounds(7));
  add_rows(got, of, floor_goal, !s.options.quick, s.out);
}

} // namespace

void next_section(const stage& s) {
  for (auto& kind : kinds)
    if (s.wants(kind.name))
      measure(s, {s.files, kind, s.set_bytes()}, kind.floor_goal);
  if (s.wants("mixed"))
    measure(s, {s.files, "mixed", mixed, s.set_bytes()}, 0.9);
}

} // namespace millrace::bench
