// Obeys commands on standard input; prints seconds.
#include <millrace/bench/checkpoint/trainer.hpp>
#include <millrace/bench/common/measure.hpp>

#include <cstdio>
#include <cstring>
#include <iostream>
#include <optional>

namespace millrace::bench {

namespace {

constexpr int start_timeout_ms = 60'000;
constexpr int work_timeout_ms = 300'000;

// The commands of one trainer.
class trainer {
public:
  trainer(
    const std::string& address, const std::string& name, std::uint32_t rank,
    std::uint32_t world_size, bool empty)
    : address_(address), table_(table_named(name)), rank_(rank), world_size_(world_size),
      model_(table_.size_bytes) {
    if (!empty)
      model_.fill_randomly(rank + 1);
  }

  double restore() {
    auto seconds = seconds_of([&] {
      register_once();
      checkpoints_->restore().get();
    });
    warm_buffer expected{table_.size_bytes};
    expected.fill_randomly(rank_ + 1);
    auto whole = table_.size_bytes / sizeof(std::uint64_t) * sizeof(std::uint64_t);
    if (std::memcmp(expected.bytes().data(), model_.bytes().data(), whole) != 0)
      give_up(table_.name + ": other bytes were restored than saved");
    return seconds;
  }

  double save(std::uint64_t step) {
    register_once();
    return seconds_of([&] { checkpoints_->save(step).durable.get(); });
  }

private:
  void register_once() {
    if (checkpoints_)
      return;
    client_.emplace(client::connect(address_));
    checkpoints_.emplace(attach(*client_, table_, model_.bytes(), rank_, world_size_));
  }

  std::string address_;
  model_table table_;
  std::uint32_t rank_, world_size_;
  warm_buffer model_;
  std::optional<class client> client_;
  std::optional<checkpointer> checkpoints_;
};

} // namespace

trainer_process::trainer_process(
  const std::string& address, const std::string& table, std::uint32_t rank,
  std::uint32_t world_size, bool empty)
  : process_(need(
      child::start(
        {"/proc/self/exe", "--trainer", address, table, std::to_string(rank),
         std::to_string(world_size), empty ? "empty" : "full"}),
      "starting a trainer")) {
  auto ready = need(process_.read_line(start_timeout_ms), "starting a trainer");
  if (ready != "ready")
    give_up("the trainer does not start: " + ready);
}

void trainer_process::send(const std::string& command) {
  if (auto bad = process_.write_line(command); !bad.ok())
    give_up(bad, "a trainer");
}

double trainer_process::finish() {
  auto answer = need(process_.read_line(work_timeout_ms), "a trainer");
  char* end = nullptr;
  auto seconds = std::strtod(answer.c_str(), &end);
  if (end == answer.c_str())
    give_up("a trainer: " + answer);
  return seconds;
}

double trainer_process::restore() {
  begin_restore();
  return finish();
}

int train(
  const std::string& address, const std::string& table, std::uint32_t rank,
  std::uint32_t world_size, bool empty) {
  try {
    trainer t{address, table, rank, world_size, empty};
    std::puts("ready");
    std::fflush(stdout);
    for (std::string command; std::cin >> command;) {
      std::uint64_t step = 0;
      if (command == "save")
        std::cin >> step;
      std::printf("%.9f\n", command == "save" ? t.save(step) : t.restore());
      std::fflush(stdout);
    }
    return 0;
  } catch (const std::exception& e) {
    std::puts(e.what());
    std::fflush(stdout);
    return 1;
  }
}

} // namespace millrace::bench
