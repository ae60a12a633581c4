// bench_python: what the package for Python adds to the C++ API, beside PyTorch's own ways.
// See bench/README.md; scripts/bench python runs it.
#include <millrace/bench/common/measure.hpp>
#include <millrace/bench/common/model_table.hpp>
#include <millrace/bench/common/options.hpp>
#include <millrace/bench/common/peers.hpp>
#include <millrace/bench/common/service.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using namespace millrace;
using namespace millrace::bench;

namespace {

constexpr double cpp_goal = 0.97;
constexpr double store_goal = 8, restore_goal = 7; // times torch.save and torch.load
constexpr double interrupt_max_s = 0.1;
constexpr double train_goal = 1.02; // with a save in every iteration

// Other competitors leave caches and pages to others, so a sample is the mean of several calls. An
// even number of stores uses both blocks of a model as often.
constexpr std::uint64_t sample_bytes = 1u << 30;
constexpr std::uint64_t min_calls = 4;

/// The package in a process of its own, as a client of `at`.
std::optional<python_peer> python_at(const service& at) {
  return python_peer::start_with_package("millrace", at.address());
}

/// The same model by both ways, and by others' ways where they are there.
struct competitors {
  const samples *python = nullptr, *cpp = nullptr, *torch = nullptr;
  std::vector<std::pair<std::string, const samples*>> others;
};

/// Those that write files, without goals.
class file_peers {
public:
  explicit file_peers(const scratch_directory& files) {
    for (const auto* name : {"dcp", "safetensors", "pickle"})
      if (auto started = python_peer::start(name))
        all_.push_back({std::move(*started), files.file(std::string{name} + "-file")});
  }

  void join(const model_table& table, contest& c, competitors& stores, competitors& loads) {
    for (auto& one : all_) {
      one.peer.build(table);
      stores.others.emplace_back(
        one.peer.name(), &c.add([&one] { return one.peer.save(one.path, false); }));
      loads.others.emplace_back(
        one.peer.name(), &c.add([&one] { return one.peer.restore(one.path, false); }));
    }
  }

private:
  struct file_peer {
    python_peer peer;
    std::string path;
  };
  std::vector<file_peer> all_;
};

void add_rows(
  const std::string& what, const model_table& table, const competitors& all, double torch_goal,
  bool has_goal, report& out) {
  row r;
  r.name = what + "/" + table.name;
  r.size_bytes = table.size_bytes;
  r.ours = *all.python;
  r.peer = "C++ call";
  r.peer_s = all.cpp->median();
  if (has_goal)
    r.ratio_min = cpp_goal;
  out.add(r);
  if (!all.torch)
    return;
  r.name += "/beside-torch";
  r.peer = what == "store" ? "torch.save" : "torch.load";
  r.peer_s = all.torch->median();
  r.ratio_min.reset();
  if (has_goal)
    r.ratio_min = torch_goal;
  for (auto& [name, other] : all.others)
    r.others.emplace_back(name, other->median());
  out.add(std::move(r));
}

void models_section(const model_options& o, const scratch_directory& files, report& out) {
  std::vector<model_table> tables{layered(64u << 20, 10)};
  if (!o.quick)
    tables.push_back(layered(1u << 30, 10));
  service at{files.path(), {service_kind::memory, 5ull << 30, {}, 0}};
  auto python = python_at(at);
  if (!python)
    return;
  auto torch = o.no_peers ? std::nullopt : python_peer::start("torch");
  auto others = o.no_peers ? std::nullopt : std::optional<file_peers>{files};
  auto rounds = o.rounds > 0 ? o.rounds : o.quick ? 2 : 15;
  auto file = files.file("torch-file");
  for (auto& table : tables) {
    warm_buffer memory{table.size_bytes};
    auto views = table.over(memory.bytes());
    std::vector<load_target> targets;
    for (auto& v : views)
      targets.push_back({.into = v});
    python->build(table);
    if (torch)
      torch->build(table);
    contest c;
    competitors stores, loads;
    auto calls = static_cast<int>(std::max(sample_bytes / table.size_bytes, min_calls));
    stores.python = &c.add([&] { return python->measure("store", calls); });
    stores.cpp = &c.add([&] {
      return mean_of(
        calls, [&] { need(at.repository().store("model", views).result(), "storing"); });
    });
    if (torch)
      stores.torch = &c.add([&] { return torch->save(file, false); });
    loads.python = &c.add([&] { return python->measure("load", calls); });
    loads.cpp = &c.add([&] {
      return mean_of(
        calls, [&] { need(at.repository().load("model", targets).result(), "loading"); });
    });
    if (torch)
      loads.torch = &c.add([&] { return torch->restore(file, false); });
    if (others)
      others->join(table, c, stores, loads);
    c.run(rounds);
    add_rows("store", table, stores, store_goal, !o.quick, out);
    add_rows("load", table, loads, restore_goal, !o.quick, out);
  }
}

void add_calls(python_peer& python, std::size_t times, report& out) {
  struct call {
    const char* name;
    const char* what;
    int count;
    double max_s;
  };
  const call calls[] = {
    {"save()/10-tensors", "save", 10, 20e-6},
    {"save()/10-tensors/no-generators", "save", -10, 20e-6},
    {"save()/1000-tensors", "save", 1000, 150e-6},
    {"save()/1000-tensors/no-generators", "save", -1000, 150e-6},
    {"interrupt/result", "interrupt", 0, interrupt_max_s},
  };
  for (auto& one : calls) {
    row r;
    r.name = one.name;
    r.seconds_max = one.max_s;
    static_cast<void>(python.measure(one.what, one.count));
    auto count = one.what == std::string{"interrupt"} ? std::min<std::size_t>(times, 20) : times;
    for (std::size_t i = 0; i < count; ++i)
      r.ours.add(python.measure(one.what, one.count));
    out.add(std::move(r));
  }
}

// torchvision's ResNet50, which computes on every core.
void add_training(python_peer& python, std::size_t rounds, report& out) {
  contest c;
  auto& with = c.add([&] { return python.measure("train", 1); });
  auto& without = c.add([&] { return python.measure("train", 0); });
  auto& torch = c.add([&] { return python.measure("train", 2); });
  c.run(rounds);
  row r;
  r.name = "train/ResNet50/save-every-1";
  r.ours = with;
  r.peer = "without saves";
  r.peer_s = without.median();
  r.others.emplace_back("torch.save in a thread", torch.median());
  r.ratio_min = 1 / train_goal;
  out.add(std::move(r));
}

void checkpoints_section(const model_options& o, const scratch_directory& files, report& out) {
  service at{
    files.path(),
    {.kind = service_kind::pmem, .capacity_bytes = 1u << 30, .path = files.file("pool")}};
  auto python = python_at(at);
  if (!python)
    return;
  add_calls(*python, o.quick ? 20 : 500, out);
  if (!o.quick)
    add_training(*python, o.rounds > 0 ? o.rounds : 7, out);
}

int run(const model_options& o) {
  auto out = begin_run(o);
  scratch_directory files{o.memory};
  out.print_header();
  if (o.only.empty() || o.only == "models")
    models_section(o, files, out);
  if (o.only.empty() || o.only == "checkpoints")
    checkpoints_section(o, files, out);
  return finish(out, o);
}

} // namespace

int main(int argc, char** argv) {
  return run_program(
    argc, argv,
    {"python",
     "What the package for Python adds to the C++ API.",
     {"models", "checkpoints"},
     &run});
}
