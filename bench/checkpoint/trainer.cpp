// Obeys commands on standard input; prints seconds.
#include <millrace/bench/checkpoint/trainer.hpp>
#include <millrace/bench/common/measure.hpp>

#include <cstdio>
#include <cstring>
#include <iostream>
#include <map>
#include <optional>

namespace millrace::bench {

namespace {

constexpr int start_timeout_ms = 60'000;
constexpr int work_timeout_ms = 300'000;

const std::map<std::string, std::string> files = {
  {"AlexNet", "alexnet"},
  {"ConvNeXt-B", "convnext_base"},
  {"ResNet50", "resnet50"},
  {"Swin-B", "swin_b"},
  {"VGG19-BN", "vgg19_bn"},
  {"ViT-B/32", "vit_b_32"},
  {"BERT-large", "bert_large_uncased"},
};

// A transformer of 24 layers of width 1024, cut along the tensor axis as Megatron does. This is one
// of its four ranks.
model_table gpt_shard() {
  constexpr std::uint64_t width = 1024, part = width / 4, words = 50304 / 4, layers = 24;
  model_table table;
  table.name = "GPT-350M";
  auto add = [&](const std::string& name, std::vector<std::uint64_t> shape) {
    table.tensors.tensors.push_back({name, dtype::f32, std::move(shape)});
  };
  add("embedding.word.weight", {words, width});
  add("embedding.position.weight", {1024, width});
  for (std::uint64_t i = 0; i < layers; ++i) {
    auto at = "layers." + std::to_string(i) + ".";
    for (auto* norm : {"input_norm", "post_attention_norm"}) {
      add(at + norm + ".weight", {width});
      add(at + norm + ".bias", {width});
    }
    add(at + "attention.qkv.weight", {3 * part, width});
    add(at + "attention.qkv.bias", {3 * part});
    add(at + "attention.dense.weight", {width, part});
    add(at + "attention.dense.bias", {width});
    add(at + "mlp.up.weight", {4 * part, width});
    add(at + "mlp.up.bias", {4 * part});
    add(at + "mlp.down.weight", {width, 4 * part});
    add(at + "mlp.down.bias", {width});
  }
  table.size_bytes = size_bytes(table.tensors);
  return table;
}

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

model_table table_named(const std::string& name) {
  if (name == "GPT-350M")
    return gpt_shard();
  if (name == "small") {
    auto table = layered(16u << 20, 20, 0.3);
    table.name = name;
    return table;
  }
  auto found = files.find(name);
  if (found == files.end())
    give_up("no table is called " + name);
  return need(
    from_file(
      name, std::string{MILLRACE_BENCH_DIRECTORY} + "/data/layers_" + found->second + ".json"),
    "reading a table");
}

checkpointer attach(
  const client& c, const model_table& table, std::span<std::byte> memory, std::uint32_t rank,
  std::uint32_t world_size) {
  checkpoint_options options;
  options.model = table.name;
  options.rank = rank;
  options.world_size = world_size;
  return c.checkpointer(options, table.over(memory)).get();
}

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
