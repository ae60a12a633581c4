// Batches that a program asks for: by mapped memory, by transfers through shared memory, and over
// tcp.
#include <millrace/bench/loader/loading.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <thread>

namespace millrace::bench {

namespace {

// How batches are read, and by how many readers.
struct reading {
  const char* name;
  const char* driver; // null: memory is mapped
  std::size_t readers;
};
constexpr reading ways[] = {{"mapped", nullptr, 1}, {"mapped", nullptr, 2}, {"mapped", nullptr, 4},
                            {"shm", "shm", 1},      {"tcp", "tcp", 1},      {"tcp", "tcp", 2},
                            {"tcp", "tcp", 4}};

// Several readers, each of them in a thread.
class readers {
public:
  readers(const data_service& at, const sample_files& of, const reading& how) {
    for (std::size_t i = 0; i < how.readers; ++i)
      all_.push_back(std::make_unique<batch_reader>(at.connect(how.driver), of));
  }
  double read(std::size_t batches) {
    return seconds_of(
      [&] { on_threads(all_.size(), [&](std::size_t i) { all_[i]->read(batches); }); });
  }

private:
  std::vector<std::unique_ptr<batch_reader>> all_;
};

// What all competitors of one size of samples took for so many batches.
struct outcome {
  std::size_t batches = 0;
  std::vector<const samples*> ours; // by `ways`
  const samples* large = nullptr;   // all samples at once, over tcp
  named_samples floors, loaders, others;
};

row row_of(const outcome& all, const sample_files& of, const reading& how, const samples& ours) {
  // Times are those of one batch of one reader, and a batch of each reader is moved in it.
  auto of_one = [&](double s) { return s / static_cast<double>(all.batches); };
  row r;
  r.name = fmt::format("read/{}/{}/{}-readers", of.name(), how.name, how.readers);
  r.size_bytes = of.batch_bytes(batch_size) * how.readers;
  for (auto seconds : ours.values())
    r.ours.add(of_one(seconds));
  r.floor_s = of_one(fastest(all.floors).second) * static_cast<double>(how.readers);
  if (how.readers > 1)
    return r;
  if (!all.loaders.empty()) {
    auto [name, best_s] = fastest(all.loaders);
    r.peer = name;
    r.peer_s = of_one(best_s);
  }
  for (auto* list : {&all.loaders, &all.others})
    for (auto& [name, times] : *list)
      r.others.emplace_back(name, of_one(times->median()));
  return r;
}

void add_rows(
  const outcome& all, const sample_files& of, double floor_goal, bool has_goals, report& out) {
  for (std::size_t i = 0; i < all.ours.size(); ++i) {
    auto& how = ways[i];
    auto r = row_of(all, of, how, *all.ours[i]);
    auto over_tcp = how.name == std::string_view{"tcp"};
    if (over_tcp) {
      auto part = static_cast<double>(r.size_bytes) / static_cast<double>(of.size_bytes());
      r.peer = "large read";
      r.peer_s = all.large->median() * part;
    }
    auto has_goal = has_goals && how.readers == 1;
    if (has_goal && !how.driver) {
      r.ratio_min = loader_goal;
      r.floor_min = floor_goal;
    }
    if (has_goal && over_tcp && of.sample_bytes() == 50 * kib)
      r.ratio_min = large_read_goal;
    out.add(std::move(r));
  }
}

void add_peers(outcome& all, contest& c, const sample_files& of, python_peer& python) {
  python.build(of.table(batch_size));
  auto count = static_cast<int>(all.batches);
  auto add = [&](const char* what) {
    return &c.add([&python, what, count] { return python.measure(what, count); });
  };
  all.loaders = {
    {"DataLoader memmap", add("memmap-0")},
    {"DataLoader memmap 2 workers", add("memmap-2")},
    {"DataLoader h5py", add("h5py-0")}};
  all.others = {{"numpy.take", add("take")}};
}

void measure(
  const stage& s, const sample_files& of, double floor_goal, const data_service& at,
  python_peer* python) {
  auto c = at.connect();
  auto set = c.working_set(of.name());
  need(set.preload({of.path()}).result(), "preloading");
  contest all;
  outcome got;
  got.batches = of.batches_of_round();
  std::vector<std::unique_ptr<readers>> each_way;
  each_way.reserve(std::size(ways));
  for (auto& how : ways)
    each_way.push_back(std::make_unique<readers>(at, of, how));
  batch_reader alone{at.connect("tcp"), of};
  warm_buffer whole{of.size_bytes()};
  gather_floor one{of, 1, few_plans},
    each{of, std::max(std::thread::hardware_concurrency(), 1u), few_plans};
  for (auto& r : each_way)
    got.ours.push_back(&all.add([&r, &got] { return r->read(got.batches); }));
  got.large = &all.add([&] { return seconds_of([&] { alone.load(whole); }); });
  for (auto* floor : {&one, &each})
    got.floors.emplace_back("", &all.add([floor, &got] { return floor->gather(got.batches); }));
  if (python)
    add_peers(got, all, of, *python);
  all.run(s.rounds(9));
  add_rows(got, of, floor_goal, !s.options.quick, s.out);
  need(set.unload().result(), "unloading");
}

} // namespace

void read_section(const stage& s) {
  data_service at{s.files, s.set_bytes() + 2 * region_bytes};
  for (auto& kind : kinds) {
    if (!s.wants(kind.name))
      continue;
    sample_files of{s.files, kind, s.set_bytes()};
    auto python =
      s.options.no_peers ? std::nullopt : python_peer::start("loader", &kind == kinds.data());
    measure(s, of, kind.floor_goal, at, python ? &*python : nullptr);
  }
}

} // namespace millrace::bench
