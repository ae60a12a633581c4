// Makes and reads tables, maps and touches memory.
#include <millrace/bench/common/measure.hpp>
#include <millrace/bench/common/model_table.hpp>

#include <nlohmann/json.hpp>
#include <sys/mman.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <random>

namespace millrace::bench {

namespace {

constexpr std::uint64_t row_elements = 1024;
constexpr std::uint64_t row_bytes_each = row_elements * sizeof(float);

void finish(model_table& table) {
  if (auto bad = validate(table.tensors); !bad.ok())
    give_up(bad, table.name);
  table.size_bytes = size_bytes(table.tensors);
  table.graph = model_graph::chain_of(table.tensors);
}

} // namespace

std::string size_name(std::uint64_t size_bytes) {
  if (size_bytes >= 1u << 30 && size_bytes % (1u << 30) == 0)
    return std::to_string(size_bytes >> 30) + "GiB";
  if (size_bytes >= 1u << 20)
    return std::to_string(size_bytes >> 20) + "MiB";
  return std::to_string(size_bytes >> 10) + "KiB";
}

std::vector<tensor_view> model_table::over(std::span<std::byte> memory) const {
  std::vector<tensor_view> views;
  views.reserve(tensors.tensors.size());
  std::uint64_t at = 0;
  for (auto& t : tensors.tensors) {
    views.push_back({t, memory.data() + at, {}});
    at += *millrace::size_bytes(t);
  }
  return views;
}

model_table layered(std::uint64_t size_bytes, std::size_t layers, double spread) {
  model_table table;
  table.name = size_name(size_bytes) + "/" + std::to_string(layers) + "-layers";
  if (spread > 0)
    table.name += "-varied";
  std::mt19937_64 random{42};
  std::uniform_real_distribution<double> stray{1 - spread, 1 + spread};
  std::vector<double> ends{0};
  for (std::size_t i = 0; i < layers; ++i)
    ends.push_back(ends.back() + (spread > 0 ? stray(random) : 1));
  auto rows = size_bytes / row_bytes_each;
  std::uint64_t begin = 0;
  for (std::size_t i = 0; i < layers; ++i) {
    auto end = static_cast<std::uint64_t>(
      std::llround(ends[i + 1] / ends.back() * static_cast<double>(rows)));
    table.tensors.tensors.push_back(
      {"layer" + std::to_string(i) + ".weight", dtype::f32, {end - begin, row_elements}});
    begin = end;
  }
  finish(table);
  return table;
}

result<model_table> from_file(const std::string& name, const std::string& path) {
  std::ifstream file{path};
  if (!file)
    return fail(status_from_errno(errno, "opening " + path));
  model_table table;
  table.name = name;
  try {
    for (auto& entry : nlohmann::json::parse(file)) {
      auto type = parse_dtype(entry.at("dtype").get<std::string>());
      if (!type)
        return fail(type.error().within(path));
      table.tensors.tensors.push_back({entry.at("name"), *type, entry.at("shape")});
    }
  } catch (const nlohmann::json::exception& e) {
    return fail(errc::invalid_argument, path + ": " + e.what());
  }
  finish(table);
  return table;
}

model_graph thousand_layers() {
  model_graph graph;
  for (std::uint32_t i = 0; i < 1000; ++i) {
    layer l;
    l.label = "block" + std::to_string(i / 4) + ".linear" + std::to_string(i % 4);
    l.kind = "Linear";
    l.attributes = {{"in_features", std::to_string(64 + i)}, {"out_features", "64"}};
    l.tensors = {{"weight", dtype::f32, {64, 64 + i}}, {"bias", dtype::f32, {64}}};
    if (i > 0)
      l.inputs.push_back(i - 1);
    if (i > 3 && i % 4 == 0)
      l.inputs.push_back(i - 4);
    graph.add(std::move(l));
  }
  return graph;
}

warm_buffer::warm_buffer(std::uint64_t size_bytes) : size_bytes_(size_bytes) {
  auto* mapped = mmap(
    nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (mapped == MAP_FAILED)
    give_up(status_from_errno(errno, "mapping memory"), size_name(size_bytes));
  data_ = static_cast<std::byte*>(mapped);
}

warm_buffer::~warm_buffer() { munmap(data_, size_bytes_); }

void warm_buffer::fill_randomly(std::uint64_t seed) {
  for (std::uint64_t at = 0; at + sizeof(seed) <= size_bytes_; at += sizeof(seed)) {
    // SplitMix64.
    auto x = seed += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    x ^= x >> 31;
    std::memcpy(data_ + at, &x, sizeof(x));
  }
}

} // namespace millrace::bench
