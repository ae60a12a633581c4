// The tensors of published networks, and a shard's registration.
#include <millrace/bench/common/measure.hpp>
#include <millrace/bench/common/published.hpp>

#include <map>
#include <utility>

namespace millrace::bench {

namespace {

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

} // namespace millrace::bench
