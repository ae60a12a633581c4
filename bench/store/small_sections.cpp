// Measures graphs, several clients at once, and the latency of small models.
#include <millrace/bench/store/sections.hpp>
#include <millrace/core/clock.hpp>

#include <barrier>
#include <mutex>
#include <thread>

namespace millrace::bench {

void graph_section(stage& s) {
  auto graph = thousand_layers();
  std::size_t bytes = 0;
  row r;
  r.name = "graph/1000-layers/hash-and-encode";
  for (std::size_t i = 0; i < 50 * s.how.rounds; ++i)
    r.ours.add(
      seconds_of([&] { bytes = encode_graph(need(compact(graph), "hashing a graph")).size(); }));
  r.size_bytes = bytes;
  r.seconds_max = 1e-3;
  r.bytes_max = 40'000;
  s.out.add(std::move(r));
}

namespace {

// Runs one client that stores its own model again and again, in step with the others.
void run_client(
  stage& s, service& memory, std::size_t number, std::barrier<>& together, std::mutex& mutex,
  samples& times) {
  auto client = memory.connect();
  auto repo = client.repository();
  auto table = layered(s.how.client_bytes, 10);
  auto part = s.source.bytes().subspan(number * s.how.client_bytes, s.how.client_bytes);
  auto name = "model-" + std::to_string(number);
  for (std::size_t round = 0; round <= s.how.rounds; ++round) {
    auto views = table.over(part);
    together.arrive_and_wait();
    auto seconds = seconds_of([&] { repo.store(name, table.graph, std::move(views)).get(); });
    together.arrive_and_wait();
    std::lock_guard guard{mutex};
    if (round > 0)
      times.add(seconds);
  }
  repo.erase(name).get();
}

} // namespace

void clients_section(stage& s, service& memory) {
  static_cast<void>(memory.repository().erase("model").result());
  for (auto clients : s.how.clients) {
    row r;
    r.name = "store/" + size_name(s.how.client_bytes) + "/10-layers/memory/sums/" +
      std::to_string(clients) + "-clients";
    r.size_bytes = clients * s.how.client_bytes;
    std::barrier<> together{static_cast<std::ptrdiff_t>(clients)};
    std::mutex mutex;
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < clients; ++i)
        threads.emplace_back([&, i] { run_client(s, memory, i, together, mutex, r.ours); });
    }
    contest c;
    auto floor = s.add_floor(c, r.size_bytes);
    c.run(s.how.rounds);
    r.floor_s = floor.median();
    s.out.add(std::move(r));
  }
}

void latency_section(stage& s, service& memory) {
  constexpr std::uint64_t tiny_bytes = 4096;
  model_table table;
  table.tensors.tensors = {{"tiny", dtype::f32, {tiny_bytes / sizeof(float)}}};
  table.graph = model_graph::chain_of(table.tensors);
  table.size_bytes = tiny_bytes;
  auto repo = memory.repository();
  samples ours_p50, ours_p99, redis_p50, redis_p99;
  for (std::size_t round = 0; round <= s.how.rounds; ++round) {
    samples ours, redis;
    for (std::size_t i = 0; i < s.how.latency_requests; ++i) {
      auto views = table.over(s.source.bytes());
      ours.add(seconds_of([&] { repo.store("tiny", table.graph, std::move(views)).get(); }));
    }
    for (std::size_t i = 0; s.redis && i < s.how.latency_requests; ++i)
      redis.add(s.redis->set(s.source.bytes().data(), tiny_bytes));
    if (round == 0)
      continue;
    ours_p50.add(ours.quantile(0.5));
    ours_p99.add(ours.quantile(0.99));
    redis_p50.add(redis.quantile(0.5));
    redis_p99.add(redis.quantile(0.99));
  }
  for (bool median : {true, false}) {
    row r;
    r.name = std::string{"latency/4KiB/memory/sums/"} + (median ? "p50" : "p99");
    r.size_bytes = tiny_bytes;
    r.ours = median ? ours_p50 : ours_p99;
    r.peer = "redis SET";
    if (s.redis)
      r.peer_s = (median ? redis_p50 : redis_p99).median();
    if (median)
      r.ratio_min = 1 / 1.5;
    s.out.add(std::move(r));
  }
}

} // namespace millrace::bench
