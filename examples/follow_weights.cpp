// A trainer publishes its weights at each step, and a replica follows them: docs/weights.md.
// Both are in this program; as a rule they are in processes of their own, on hosts of their own.
#include <millrace/runtime/client/client.hpp>
#include <millrace/runtime/client/weights.hpp>
#include <millrace/runtime/configuration.hpp>
#include <millrace/runtime/node/node.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <span>
#include <thread>
#include <vector>

using namespace millrace;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t last_step = 20;

std::vector<tensor_view> tensors_of(std::vector<float>& weight) {
  return {tensor_view::dense("fc1.weight", dtype::f32, {512, 256}, std::span{weight})};
}

void train(const client& trainer) {
  std::vector<float> weight(512 * 256);
  auto publisher = trainer.weights("policy").publisher(tensors_of(weight)).value();
  for (std::uint64_t step = 1; step <= last_step; ++step) {
    std::ranges::fill(weight, static_cast<float>(step)); // forward, backward, update
    auto publication = publisher.publish(step);
    publication.staged.get(); // the tensors may change
    if (step == last_step)
      publication.stored.get();
  }
}

// Returns how many versions the replica has had.
int follow(const client& replica) {
  std::vector<float> weight(512 * 256);
  std::vector<load_target> targets{{tensors_of(weight).front()}};
  auto follower = replica.weights("policy").follow().value();
  int versions = 0;
  for (std::uint64_t reached = 0; reached < last_step; ++versions) {
    auto version = follower.next(30s).get().version;
    auto loaded = follower.load(targets).get(); // all bytes are of `loaded.version`
    auto is_whole =
      std::ranges::all_of(weight, [&](float w) { return w == static_cast<float>(loaded.version); });
    if (!is_whole || loaded.version < version)
      throw error{status{errc::corrupt_data, "version {} is torn", loaded.version}};
    reached = loaded.version;
  }
  return versions;
}

} // namespace

int main() {
  auto directory = (std::filesystem::temp_directory_path() / "millrace-XXXXXX").string();
  if (!mkdtemp(directory.data()))
    return 1;
  auto status = 1;
  try {
    auto yaml = "{node: {listen: 'unix:" + directory + "/n0.sock'}, providers: [{name: fast}]}";
    auto here = node::embed(parse_configuration(yaml, "follow_weights").value());
    auto connected = here.client(); // elsewhere: client::connect(address)
    std::jthread trainer{[&] { train(connected); }};
    auto versions = follow(connected);
    std::cout << "published " << last_step << " versions; the replica had " << versions
              << " of them\n";
    status = 0;
  } catch (const std::exception& why) {
    std::cerr << "follow_weights: " << why.what() << "\n";
  }
  std::filesystem::remove_all(directory);
  return status;
}
