// Measures graphs, several clients at once, and the latency of small models.
#include <millrace/bench/store/sections.hpp>
#include <millrace/core/clock.hpp>

#include <algorithm>
#include <barrier>
#include <cstring>
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

namespace {

constexpr std::uint64_t tiny_bytes = 4096;

model_table tiny_table() {
  model_table table;
  table.tensors.tensors = {{"tiny", dtype::f32, {tiny_bytes / sizeof(float)}}};
  table.graph = model_graph::chain_of(table.tensors);
  table.size_bytes = tiny_bytes;
  return table;
}

// How many operations are under way at a time, or travel together.
constexpr std::size_t window = 64;

std::string name_of(std::size_t i) { return "tiny-" + std::to_string(i % window); }

void check_bytes(std::span<const std::byte> loaded, std::span<const std::byte> stored) {
  for (std::size_t i = 0; i < window; ++i)
    if (std::memcmp(loaded.data() + i * tiny_bytes, stored.data(), tiny_bytes) != 0)
      give_up("other bytes came back than were stored");
}

// Runs `begin(i)` for `count` operations, of which `at_once` are under way at a time.
template <class Begin>
double seconds_in_flight(std::size_t count, std::size_t at_once, const Begin& begin) {
  return seconds_of([&] {
    std::vector<decltype(begin(0))> going;
    for (std::size_t i = 0; i < count; ++i) {
      if (i < at_once) {
        going.push_back(begin(i));
        continue;
      }
      going[i % at_once].get();
      going[i % at_once] = begin(i);
    }
    for (auto& one : going)
      one.get();
  });
}

} // namespace

void small_section(stage& s, service& memory) {
  auto count = std::max(s.how.latency_requests / window, std::size_t{2}) * window;
  auto table = tiny_table();
  auto repo = memory.repository();
  auto target = s.target.first(window * tiny_bytes);
  auto store = [&](std::size_t i) {
    return repo.store(name_of(i), table.graph, table.over(s.source.bytes()));
  };
  auto load = [&](std::size_t i) {
    auto to = target.subspan(i % window * tiny_bytes, tiny_bytes);
    return repo.load(name_of(i), {{{table.tensors.tensors[0], to.data(), {}}, {}}});
  };
  auto store_64 = [&](std::size_t i) {
    std::vector<model_to_store> models;
    for (std::size_t k = 0; k < window; ++k)
      models.push_back(
        {.model = name_of(i * window + k),
         .tensors = table.over(s.source.bytes()),
         .graph = &table.graph});
    return when_all(repo.store_many(std::move(models)));
  };
  auto load_64 = [&](std::size_t) {
    std::vector<model_to_load> models;
    for (std::size_t k = 0; k < window; ++k)
      models.push_back(
        {.model = name_of(k),
         .targets = {{{table.tensors.tensors[0], target.data() + k * tiny_bytes, {}}, {}}}});
    return when_all(repo.load_many(std::move(models)));
  };
  row stores, loads, many_stores, many_loads;
  samples redis_sets, redis_gets;
  for (std::size_t round = 0; round <= s.how.rounds; ++round) {
    auto per_request = [&](double seconds) { return seconds / static_cast<double>(count); };
    auto stored_s = seconds_in_flight(count, window, store);
    auto loaded_s = seconds_in_flight(count, window, load);
    auto stored_64_s = seconds_in_flight(count / window, 1, store_64);
    auto loaded_64_s = seconds_in_flight(count / window, 1, load_64);
    auto set_s = 0.0, get_s = 0.0;
    for (std::size_t i = 0; s.redis && i < count; i += window) {
      set_s += s.redis->set_many(window, s.source.bytes().data(), tiny_bytes);
      get_s += s.redis->get_many(window, target.data(), tiny_bytes);
    }
    if (round == 0)
      continue;
    stores.ours.add(per_request(stored_s));
    loads.ours.add(per_request(loaded_s));
    many_stores.ours.add(per_request(stored_64_s));
    many_loads.ours.add(per_request(loaded_64_s));
    redis_sets.add(per_request(set_s));
    redis_gets.add(per_request(get_s));
  }
  check_bytes(target, s.source.bytes());
  auto add = [&](row r, const std::string& name, bool is_store) {
    r.name = name;
    r.size_bytes = tiny_bytes;
    r.peer = is_store ? "redis SET, pipeline of 64" : "redis GET, pipeline of 64";
    if (s.redis)
      r.peer_s = (is_store ? redis_sets : redis_gets).median();
    r.ratio_min = 1;
    s.out.add(std::move(r));
  };
  add(std::move(stores), "store/4KiB/memory/sums/64-in-flight", true);
  add(std::move(loads), "load/4KiB/memory/sums/64-in-flight", false);
  add(std::move(many_stores), "store_many/64x4KiB/memory/sums", true);
  add(std::move(many_loads), "load_many/64x4KiB/memory/sums", false);
}

namespace {

// The median and the 99th percentile of each round.
struct latencies {
  samples p50, p99;

  void add(const samples& round) {
    p50.add(round.quantile(0.5));
    p99.add(round.quantile(0.99));
  }
};

void store_latency(stage& s, service& memory) {
  auto table = tiny_table();
  auto repo = memory.repository();
  latencies all_ours, all_redis;
  for (std::size_t round = 0; round <= s.how.rounds; ++round) {
    samples ours, redis;
    for (std::size_t i = 0; i < s.how.latency_requests; ++i) {
      auto views = table.over(s.source.bytes());
      ours.add(seconds_of([&] { repo.store("tiny", table.graph, std::move(views)).get(); }));
    }
    for (std::size_t i = 0; s.redis && i < s.how.latency_requests; ++i)
      redis.add(s.redis->set_many(1, s.source.bytes().data(), tiny_bytes));
    if (round == 0)
      continue;
    all_ours.add(ours);
    all_redis.add(redis);
  }
  for (bool median : {true, false}) {
    row r;
    r.name = std::string{"latency/4KiB/memory/sums/"} + (median ? "p50" : "p99");
    r.size_bytes = tiny_bytes;
    r.ours = median ? all_ours.p50 : all_ours.p99;
    r.peer = "redis SET";
    if (s.redis)
      r.peer_s = (median ? all_redis.p50 : all_redis.p99).median();
    if (median)
      r.ratio_min = 1 / 1.5;
    s.out.add(std::move(r));
  }
}

// The provider has the model in memory, so that no load waits for the disk.
void warm_load_latency(stage& s) {
  service disk{
    s.on_disk.path(),
    {.kind = service_kind::rocksdb, .capacity_bytes = 1u << 30, .path = s.on_disk.file("warm")}};
  auto table = tiny_table();
  auto repo = disk.repository();
  auto target = s.target.first(tiny_bytes);
  repo.store("tiny", table.graph, table.over(s.source.bytes())).get();
  latencies all;
  for (std::size_t round = 0; round <= s.how.rounds; ++round) {
    samples ours;
    for (std::size_t i = 0; i < s.how.latency_requests; ++i)
      ours.add(seconds_of([&] {
        repo.load("tiny", {{{table.tensors.tensors[0], target.data(), {}}, {}}}).get();
      }));
    if (round > 0)
      all.add(ours);
  }
  if (std::memcmp(target.data(), s.source.bytes().data(), tiny_bytes) != 0)
    give_up("other bytes came back than were stored");
  for (bool median : {true, false}) {
    row r;
    r.name = std::string{"load/4KiB/rocksdb/sums/warm/"} + (median ? "p50" : "p99");
    r.size_bytes = tiny_bytes;
    r.ours = median ? all.p50 : all.p99;
    if (median)
      r.seconds_max = 30e-6;
    s.out.add(std::move(r));
  }
}

} // namespace

void latency_section(stage& s, service& memory) {
  store_latency(s, memory);
  warm_load_latency(s);
}

} // namespace millrace::bench
