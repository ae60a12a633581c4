// Three processes of one host share the weights of one of them by broadcasts: docs/groups.md.
// Here they are threads with clients of their own; as a rule they are processes.
#include <millrace/runtime/client/broadcast_group.hpp>
#include <millrace/runtime/client/client.hpp>
#include <millrace/runtime/configuration.hpp>
#include <millrace/runtime/node/node.hpp>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <span>
#include <string>
#include <thread>
#include <vector>

using namespace millrace;

namespace {

constexpr std::uint32_t members = 3;
constexpr int steps = 20;

std::vector<tensor_view> tensors_of(std::vector<float>& weight) {
  return {tensor_view::dense("fc1.weight", dtype::f32, {512, 256}, std::span{weight})};
}

void work(const client& node, std::uint32_t rank) {
  group_options options;
  options.rank = rank;
  options.size = members;
  auto group = node.join_group("workers", options).get(); // when all have joined
  std::vector<float> weight(512 * 256);
  for (int step = 1; step <= steps; ++step) {
    if (rank == 0)
      std::ranges::fill(weight, static_cast<float>(step)); // forward, backward, update
    group.broadcast(tensors_of(weight), {.root = 0}).get();
    if (std::ranges::any_of(weight, [&](float w) { return w != static_cast<float>(step); }))
      throw error{status{errc::corrupt_data, "step {} has other weights", step}};
  }
}

} // namespace

int main() {
  auto directory = (std::filesystem::temp_directory_path() / "millrace-XXXXXX").string();
  if (!mkdtemp(directory.data()))
    return 1;
  std::atomic<int> failed = 0;
  try {
    auto yaml = "{node: {listen: 'unix:" + directory + "/n0.sock'}, providers: [{name: fast}]}";
    auto here = node::embed(parse_configuration(yaml, "broadcast_group").value());
    std::vector<std::jthread> threads;
    for (std::uint32_t rank = 0; rank < members; ++rank)
      threads.emplace_back([&, rank] {
        try {
          work(client::connect("unix:" + directory + "/n0.sock"), rank);
        } catch (const std::exception& why) {
          std::cerr << "broadcast_group: rank " << rank << ": " << why.what() << "\n";
          ++failed;
        }
      });
    threads.clear(); // waits for all of them
    if (failed == 0)
      std::cout << members << " members had the same weights at each of " << steps << " steps\n";
  } catch (const std::exception& why) {
    std::cerr << "broadcast_group: " << why.what() << "\n";
    ++failed;
  }
  std::filesystem::remove_all(directory);
  return failed == 0 ? 0 : 1;
}
