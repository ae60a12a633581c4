// A node in this process: the program stores a model in it, and loads some rows of one tensor back.
#include <millrace/runtime/configuration.hpp>
#include <millrace/runtime/node/node.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <numeric>
#include <vector>

using millrace::dtype;
using millrace::tensor_view;

bool store_and_load(millrace::repository repo) {
  // Any memory can hold a tensor. A model's architecture is a graph of layers.
  std::vector<float> weight(512 * 256), bias(512);
  std::iota(weight.begin(), weight.end(), 0.0F);
  millrace::model_graph graph;
  graph.add(
    {"fc1",
     "Linear",
     {{"in_features", "256"}, {"out_features", "512"}},
     {{"weight", dtype::f32, {512, 256}}, {"bias", dtype::f32, {512}}},
     {}});
  auto stored = repo.store(
    "hello/first", graph,
    {tensor_view::dense("fc1.weight", dtype::f32, {512, 256}, std::span{weight}),
     tensor_view::dense("fc1.bias", dtype::f32, {512}, std::span{bias})});
  auto receipt = stored.get(); // throws; result() does not; then() and co_await do not block
  std::cout << "stored " << receipt.model << ", version " << receipt.version << ", "
            << receipt.size_bytes << " bytes, moved by " << receipt.driver << "\n";

  // Rows 100 to 102 of one tensor, straight to where they are wanted.
  std::vector<float> rows(3 * 256);
  auto wanted = tensor_view::dense("fc1.weight", dtype::f32, {3, 256}, std::span{rows});
  auto loaded = repo.load("hello/first", {{.into = wanted, .first_row = 100}}).get();
  std::cout << "loaded " << loaded.size_bytes << " bytes, checksums "
            << (loaded.verified ? "agree" : "not kept") << "\n";
  return std::equal(rows.begin(), rows.end(), weight.begin() + 100 * 256);
}

int main() {
  auto directory = (std::filesystem::temp_directory_path() / "millrace-XXXXXX").string();
  if (!mkdtemp(directory.data()))
    return 1;
  bool same = false;
  try {
    auto yaml = "{node: {listen: 'unix:" + directory + "/n0.sock'}, providers: [{name: fast}]}";
    auto node = millrace::node::embed(millrace::parse_configuration(yaml, "quickstart").value());
    same = store_and_load(node.client().repository()); // elsewhere: client::connect(address)
  } catch (const std::exception& why) {
    std::cerr << "quickstart: " << why.what() << "\n";
  }
  std::filesystem::remove_all(directory);
  return same ? 0 : 1;
}
