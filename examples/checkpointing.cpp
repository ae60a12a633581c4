// A training loop that saves every step, "crashes", and continues from the newest step in a new
// run.
#include <millrace/runtime/configuration.hpp>
#include <millrace/runtime/node/node.hpp>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <numeric>
#include <vector>

using millrace::dtype;
using millrace::tensor_view;

using parameters = std::vector<float>;

void update(parameters& weight) {
  for (auto& w : weight)
    w = 0.5F * w + 1.0F;
}

// Registers the shard of one rank once. From then on the service knows where the tensors lie.
millrace::checkpointer register_shard(const millrace::client& client, parameters& weight) {
  auto tensors = std::vector{
    tensor_view::dense("weight", dtype::f32, {weight.size() / 256, 256}, std::span{weight})};
  return client.checkpointer({.model = "run7", .rank = 0, .world_size = 1}, tensors).get();
}

void train(millrace::checkpointer checkpoints, parameters& weight, int first, int last) {
  for (auto step = first; step < last; ++step) {
    auto saving = checkpoints.save(step); // microseconds; two futures: staged and durable
    // ... forward and backward: they leave the parameters alone, and the pull overlaps them ...
    // Waits only if the pull still runs, and says what failed.
    if (auto bad = checkpoints.fence(); !bad.ok())
      throw millrace::error{bad};
    update(weight);
  }
}

int resume(const millrace::client& client) {
  parameters weight(512 * 256);
  auto checkpoints = register_shard(client, weight);
  auto restored = checkpoints.restore().get(); // the newest step that all ranks have, in place
  std::cout << "restored step " << restored.version << ", " << restored.size_bytes
            << " bytes, moved by " << restored.driver << "\n";
  update(weight);
  train(checkpoints, weight, static_cast<int>(restored.version) + 1, 20);
  parameters expected(weight.size());
  for (auto step = 0; step < 20; ++step)
    update(expected);
  return weight == expected ? 0 : 1;
}

int main() {
  auto directory = (std::filesystem::temp_directory_path() / "millrace-XXXXXX").string();
  if (!mkdtemp(directory.data()))
    return 1;
  auto outcome = 1;
  try {
    auto yaml = "{node: {listen: 'unix:" + directory +
      "/n0.sock'}, providers: [{name: kept, bucket: pmem, capacity: 64MiB, path: '" + directory +
      "/pool'}]}";
    auto node = millrace::node::embed(millrace::parse_configuration(yaml, "checkpointing").value());
    {
      parameters weight(512 * 256);
      train(register_shard(node.client(), weight), weight, 0, 10);
    } // the next run has only the pool
    outcome = resume(node.client());
  } catch (const std::exception& why) {
    std::cerr << "checkpointing: " << why.what() << "\n";
  }
  std::filesystem::remove_all(directory);
  return outcome;
}
