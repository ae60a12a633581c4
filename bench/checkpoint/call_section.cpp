// Runs a loop of forward, backward and update on one core, with a save in every iteration and
// without saves.
#include <millrace/bench/checkpoint/stage.hpp>
#include <millrace/transport/fabric_options.hpp>

#include <Eigen/Core>

#include <algorithm>
#include <cstring>

namespace millrace::bench {

namespace {

constexpr int calls = 200;

// Forward and backward do not change the parameters; the update writes all of them.
class training {
public:
  training(std::span<std::byte> parameters, int products)
    : parameters_(
        reinterpret_cast<float*>(parameters.data()),
        static_cast<Eigen::Index>(parameters.size() / sizeof(float))),
      gradient_(Eigen::VectorXf::Constant(parameters_.size(), 1e-6f)),
      a_(Eigen::MatrixXf::Random(width, width)), b_(a_), products_(products) {}

  void forward_and_backward() {
    for (int i = 0; i < products_; ++i) {
      c_.noalias() = a_ * b_;
      b_ = c_ * (1.0f / width);
    }
  }
  void update() { parameters_ -= gradient_; }

private:
  static constexpr int width = 1024;
  Eigen::Map<Eigen::VectorXf> parameters_;
  Eigen::VectorXf gradient_;
  Eigen::MatrixXf a_, b_, c_;
  int products_;
};

// Measures the call alone, while pulls run.
void save_calls(stage& s, const service& at) {
  auto table = layered(1u << 20, 10);
  auto client = at.connect();
  auto checkpoints = attach(client, table, s.source.first(table.size_bytes));
  samples times;
  for (std::uint64_t step = 1; step <= calls; ++step) {
    pending_save saving;
    times.add(seconds_of([&] { saving = checkpoints.save(step); }));
    saving.durable.get();
  }
  row r;
  r.name = "save()/the-call";
  r.ours = times;
  r.seconds_max = 100e-6;
  s.out.add(std::move(r));
  if (auto bad = checkpoints.close(true); !bad.ok())
    give_up(bad, "closing");
}

void slowdown(stage& s, const service& at) {
  auto table = table_named(s.how.quick ? "small" : "ResNet50");
  auto parameters = s.target.first(table.size_bytes);
  std::memset(parameters.data(), 0, parameters.size());
  training work{parameters, s.how.quick ? 1 : 12};
  config::settings settings;
  settings.options.edit<transport::fabric_options>().movers =
    1; // one core computes, the other one copies
  auto client = at.connect(settings);
  auto checkpoints = attach(client, table, parameters);
  std::uint64_t step = 0;
  auto iterations = s.how.quick ? 3 : 10;
  auto loop = [&](bool saving) {
    return seconds_of([&] {
      for (int i = 0; i < iterations; ++i) {
        if (saving)
          static_cast<void>(checkpoints.save(++step));
        work.forward_and_backward();
        if (saving)
          if (auto bad = checkpoints.fence(); !bad.ok())
            give_up(bad, "a save");
        work.update();
      }
    });
  };
  contest c;
  auto& with = c.add([&] { return loop(true); });
  auto& without = c.add([&] { return loop(false); });
  c.run(s.how.rounds);
  row r;
  r.name = "loop/" + table.name + "/save-every-iteration";
  r.ours = with;
  r.size_bytes = 0;
  r.peer = "without saves";
  r.peer_s = without.median();
  if (!s.how.quick)
    r.ratio_min = 1 / 1.02;
  s.out.add(std::move(r));
  if (auto bad = checkpoints.close(true); !bad.ok())
    give_up(bad, "closing");
}

} // namespace

void loop_section(stage& s) {
  service at{
    s.in_memory.path(),
    {.kind = service_kind::pmem,
     .capacity_bytes = s.how.pool_bytes() / 2,
     .path = s.in_memory.file("pool-of-loop"),
     .movers = 1}};
  save_calls(s, at);
  slowdown(s, at);
}

} // namespace millrace::bench
