// A node in this process, a model stored in it, and a part of the model loaded back.
#include <millrace/config/load.hpp>
#include <millrace/runtime/node.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <vector>

using millrace::dtype;
using millrace::tensor_view;

int run(const std::string& directory) {
  auto settings = millrace::config::parse(
    "node: { name: n0, listen: 'unix:" + directory +
      "/n0.sock' }\n"
      "providers:\n"
      "  - { name: fast, bucket: memory, capacity: 16MiB }\n",
    "quickstart");
  if (!settings)
    throw millrace::error{settings.error()};
  auto node = millrace::node::embed(*settings); // other processes: client::connect(address)
  auto repo = node.client().repository();

  // Any memory of yours is a tensor; a model's architecture is a graph of layers.
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
  auto receipt = stored.get(); // throws; result() does not, then() and co_await do not wait
  std::printf(
    "stored %s version %ju: %ju bytes, moved by %s\n", receipt.model.c_str(),
    static_cast<std::uintmax_t>(receipt.version), static_cast<std::uintmax_t>(receipt.size_bytes),
    receipt.driver.c_str());

  // Rows 100 to 102 of one tensor, straight to where they are wanted.
  std::vector<float> rows(3 * 256);
  auto wanted = tensor_view::dense("fc1.weight", dtype::f32, {3, 256}, std::span{rows});
  auto loaded = repo.load("hello/first", {{.into = wanted, .first_row = 100}}).get();
  std::printf(
    "loaded %ju bytes, checksums %s\n", static_cast<std::uintmax_t>(loaded.size_bytes),
    loaded.verified ? "agree" : "not kept");
  return std::equal(rows.begin(), rows.end(), weight.begin() + 100 * 256) ? 0 : 1;
}

int main() {
  std::string directory = (std::filesystem::temp_directory_path() / "millrace-XXXXXX").string();
  if (!mkdtemp(directory.data()))
    return 1;
  int status = 1;
  try {
    status = run(directory);
  } catch (const millrace::error& why) {
    std::fprintf(stderr, "quickstart: %s\n", why.what());
  }
  std::filesystem::remove_all(directory);
  return status;
}
