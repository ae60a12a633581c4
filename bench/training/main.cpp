// bench_training: what saves cost a training that computes on every core, beside other ways of
// saving in the background.
// Then what another program on every core costs a save for which the trainer does not wait.
// See bench/README.md; scripts/bench training runs it.
#include <millrace/bench/common/floors.hpp>
#include <millrace/bench/common/options.hpp>
#include <millrace/bench/common/peers.hpp>
#include <millrace/bench/common/published.hpp>
#include <millrace/bench/common/service.hpp>
#include <millrace/bench/training/trainer.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <thread>

using namespace millrace;
using namespace millrace::bench;

namespace {

constexpr int iterations = 16; // of a loop
// Saves at every so many iterations.
constexpr int distances[] = {1, 4, 16};
// An iteration of the largest model takes a second, those of others in proportion.
constexpr double seconds_of_byte = 1.0 / 1.34e9;
constexpr double slowdown_goal = 1.01; // with a save in every 16th iteration
constexpr double cost_goal = 1.1;      // times a plain copy by one core
constexpr double starved_goal = 3;     // times a save on idle cores, after the patience
constexpr auto filling = "--fill-cores";

struct workload {
  std::string table;
  double iteration_s;
  bool has_goal;
};

std::vector<workload> workloads(const model_options& o) {
  if (o.quick)
    return {{"small", 0.02, false}};
  std::vector<workload> out;
  for (auto* name : {"ResNet50", "VGG19-BN", "BERT-large"})
    if (std::string{name}.find(o.model) != std::string::npos)
      out.push_back(
        {name, seconds_of_byte * static_cast<double>(table_named(name).size_bytes),
         name == std::string{"BERT-large"}});
  return out;
}

unsigned cores() { return std::max(std::thread::hardware_concurrency(), 1u); }

/// What threads and processes have spent on cores.
struct spent {
  double movers, loops, provider;

  static spent so_far(const service& at) {
    return {
      core_seconds_of_threads("mr.mover"), core_seconds_of_threads("mr.loop"), at.core_seconds()};
  }
  std::string since(const spent& before, std::size_t saves) const {
    auto each = [&](double now, double then) { return (now - then) / static_cast<double>(saves); };
    return fmt::format(
      "core seconds of a save: {:.4f} movers of the trainer, {:.4f} its I/O loop, {:.4f} provider",
      each(movers, before.movers), each(loops, before.loops), each(provider, before.provider));
  }
};

/// A trainer in Python that computes on every core, too; see bench/peers/training.py.
struct other_way {
  std::string name, label;
  python_peer trainer;
  const samples* without = nullptr;
  std::vector<const samples*> with = {}; // by distance
};

std::vector<other_way> other_ways(const model_options& o, const workload& of) {
  std::vector<other_way> out;
  if (o.no_peers)
    return out;
  for (auto [name, label] :
       {std::pair{"training_torch", "torch.save in a thread"},
        std::pair{"training_dcp", "DCP async_save"}})
    if (auto started = python_peer::start(name)) {
      started->build_training(table_named(of.table), of.iteration_s, cores());
      out.push_back({name, label, std::move(*started)});
    }
  return out;
}

/// A training whose saves go to a pool in memory of another process.
class our_training {
public:
  our_training(const workload& of, const scratch_directory& files)
    : pool_(files.file(of.table)), table_(table_named(of.table)), memory_(table_.size_bytes),
      copy_(table_.size_bytes), at_(
                                  files.path(),
                                  {.kind = service_kind::pmem,
                                   .capacity_bytes = 2 * table_.size_bytes + (256u << 20),
                                   .path = pool_}),
      client_(at_.connect()), checkpoints_(attach(client_, table_, memory_.bytes())),
      trainer_(memory_.bytes(), cores()) {
    trainer_.calibrate(of.iteration_s);
  }
  ~our_training() {
    static_cast<void>(checkpoints_.close(true));
    // The pool of the next model has another size.
    std::filesystem::remove(pool_);
  }
  our_training(const our_training&) = delete;
  our_training& operator=(const our_training&) = delete;

  std::uint64_t size_bytes() const noexcept { return table_.size_bytes; }

  /// Returns the seconds of a loop that saves in every so many iterations; 0: in none. The last
  /// save is over at the end.
  double train(int distance) {
    auto before = spent::so_far(at_);
    auto begun = step_;
    auto seconds = seconds_of([&] {
      for (int i = 0; i < iterations; ++i)
        iterate(distance > 0 && i % distance == 0);
    });
    if (step_ > begun)
      account_ = spent::so_far(at_).since(before, step_ - begun);
    return seconds;
  }
  /// Says what each save of the last loop with saves took.
  const std::string& account() const noexcept { return account_; }

  /// Returns the seconds until a save is durable. Nobody waits in `fence()` meanwhile.
  double save() {
    return seconds_of([&] { need(checkpoints_.save(++step_).durable.result(), "a save"); });
  }
  double save_beside_another_program() {
    auto other = need(child::start({"/proc/self/exe", filling}), "starting another program");
    need(other.read_line(10'000), "starting another program");
    return save();
  }

  double copy_by_one_core() { return timed_copy(memory_.bytes(), copy_.bytes(), 1); }

private:
  void iterate(bool saves) {
    if (saves)
      static_cast<void>(checkpoints_.save(++step_));
    trainer_.forward_and_backward();
    if (saves)
      if (auto bad = checkpoints_.fence(); !bad.ok())
        give_up(bad, "a save");
    trainer_.update();
  }

  const std::string pool_;
  const model_table table_;
  warm_buffer memory_, copy_;
  service at_;
  client client_;
  checkpointer checkpoints_;
  core_trainer trainer_;
  std::uint64_t step_ = 0;
  std::string account_;
};

/// The loops of one workload, in turns.
struct loops {
  const samples* without = nullptr;
  std::vector<const samples*> with = {}; // by distance
  const samples* copies = nullptr;
  std::vector<std::string> accounts = std::vector<std::string>(std::size(distances));
};

void add_ours(contest& c, our_training& ours, loops& all) {
  all.without = &c.add([&] { return ours.train(0); });
  for (std::size_t i = 0; i < std::size(distances); ++i)
    all.with.push_back(&c.add([&, i] {
      auto seconds = ours.train(distances[i]);
      all.accounts[i] = ours.account();
      return seconds;
    }));
  all.copies = &c.add([&] { return ours.copy_by_one_core(); });
}

void add_other(contest& c, other_way& one, const std::string& path) {
  one.without = &c.add([&one, path] { return one.trainer.train(iterations, 0, path); });
  for (auto distance : distances)
    one.with.push_back(
      &c.add([&one, path, distance] { return one.trainer.train(iterations, distance, path); }));
}

row slowdown_of(
  const workload& of, std::size_t i, const loops& all, const std::vector<other_way>& others) {
  row r;
  r.name = fmt::format("train/{}/save-every-{}", of.table, distances[i]);
  r.ours = *all.with[i];
  r.peer = "without saves";
  r.peer_s = all.without->median();
  for (auto& one : others)
    r.others.emplace_back(
      one.label, all.without->median() * one.with[i]->median() / one.without->median());
  r.stages = all.accounts[i];
  if (of.has_goal && distances[i] == iterations)
    r.ratio_min = 1 / slowdown_goal;
  return r;
}

// Saves in every iteration: what all cores lost for each, against one copy by one core.
row cost_of(const workload& of, std::uint64_t size_bytes, const loops& all) {
  row r;
  r.name = fmt::format("cost/{}/core-seconds", of.table);
  r.size_bytes = size_bytes;
  for (std::size_t i = 0; i < all.without->values().size(); ++i) {
    auto lost = all.with.front()->values()[i] - all.without->values()[i];
    r.ours.add(std::max(lost, 1e-9) / iterations * cores());
  }
  r.floor_s = all.copies->median();
  if (of.table != "small")
    r.floor_min = 1 / cost_goal;
  return r;
}

void measure_starved(const workload& of, const model_options& o, our_training& ours, report& out) {
  contest c;
  auto& alone = c.add([&] { return ours.save(); });
  auto& beside = c.add([&] { return ours.save_beside_another_program(); });
  c.run(o.rounds > 0 ? o.rounds : o.quick ? 2 : 5);
  row r;
  r.name = fmt::format("starved/{}/durable", of.table);
  r.size_bytes = ours.size_bytes();
  r.ours = beside;
  r.peer = "patience + 3 saves";
  r.peer_s = static_cast<double>(config::settings{}.client.mover_patience_ms) * 1e-3 +
    starved_goal * alone.median();
  r.others.emplace_back("on idle cores", alone.median());
  if (of.table != "small")
    r.ratio_min = 1;
  out.add(r);
}

void measure(
  const workload& of, const model_options& o, const scratch_directory& files, report& out) {
  our_training ours{of, files};
  auto others = other_ways(o, of);
  contest c;
  loops all;
  add_ours(c, ours, all);
  for (auto& one : others)
    add_other(c, one, files.file("file-of-" + one.name));
  c.run(o.rounds > 0 ? o.rounds : o.quick ? 2 : 5);
  for (std::size_t i = 0; i < std::size(distances); ++i)
    out.add(slowdown_of(of, i, all, others));
  out.add(cost_of(of, ours.size_bytes(), all));
  measure_starved(of, o, ours, out);
}

// Another program that leaves no core idle, until it is ended.
[[noreturn]] void fill_every_core() {
  auto fill = [] {
    for (volatile unsigned n = 0;;)
      n = n + 1;
  };
  for (unsigned i = 1; i < cores(); ++i)
    std::thread{fill}.detach();
  std::puts("ready");
  std::fflush(stdout);
  fill();
  std::abort();
}

int run(const model_options& o) {
  auto out = begin_run(o);
  scratch_directory files{o.memory};
  out.print_header();
  for (auto& one : workloads(o))
    measure(one, o, files, out);
  return finish(out, o);
}

} // namespace

int main(int argc, char** argv) {
  if (argc == 2 && argv[1] == std::string{filling})
    fill_every_core();
  return run_program(
    argc, argv,
    {"training", "What saves cost a training that computes on every core.", {"train"}, &run});
}
