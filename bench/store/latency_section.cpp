// Measures the latency of small models: wherever the kernel runs both ends, with both on one core,
// and with each on a core of its own.
#include <millrace/bench/common/cores.hpp>
#include <millrace/bench/store/sections.hpp>
#include <millrace/bench/store/tiny.hpp>

#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <utility>

namespace millrace::bench {

namespace {

// Both ends of a pair of processes: the cores of ours and of the other one's.
struct placing {
  std::string name; // in cases; empty: as the kernel likes
  std::pair<unsigned, unsigned> cores;
  std::optional<double> ratio_min, seconds_max;
};

std::vector<placing> placings() {
  std::vector<placing> out{{"", {}, 1 / 1.5, {}}, {"one-core/", {0, 0}, 1, {}}};
  if (cores_here() > 1)
    out.push_back({"two-cores/", {0, 1}, 2, 5e-6});
  else
    skip_aloud("latency/4KiB/memory/sums/two-cores", "there is one core");
  return out;
}

// The median and the 99th percentile of each round.
struct latencies {
  samples p50, p99;

  void add(const samples& round) {
    p50.add(round.quantile(0.5));
    p99.add(round.quantile(0.99));
  }
};

samples timed(
  std::size_t count, const placing& at, pid_t other, const std::function<double()>& one) {
  std::optional<on_cores> pinned;
  if (!at.name.empty())
    pinned.emplace(at.cores.first, other, at.cores.second);
  samples out;
  for (std::size_t i = 0; i < count; ++i)
    out.add(one());
  return out;
}

void measure(stage& s, service& memory, const placing& at) {
  auto table = tiny_table();
  auto repo = memory.repository();
  latencies all_ours, all_redis;
  for (std::size_t round = 0; round <= s.how.rounds; ++round) {
    auto ours = timed(s.how.latency_requests, at, memory.pid(), [&] {
      auto views = table.over(s.source.bytes());
      return seconds_of([&] { repo.store("tiny", table.graph, std::move(views)).get(); });
    });
    samples redis;
    if (s.redis)
      redis = timed(s.how.latency_requests, at, s.redis->pid(), [&] {
        return s.redis->set_many(1, s.source.bytes().data(), tiny_bytes);
      });
    if (round == 0)
      continue;
    all_ours.add(ours);
    all_redis.add(redis);
  }
  for (bool median : {true, false}) {
    row r;
    r.name = fmt::format("latency/4KiB/memory/sums/{}{}", at.name, median ? "p50" : "p99");
    r.size_bytes = tiny_bytes;
    r.ours = median ? all_ours.p50 : all_ours.p99;
    r.peer = "redis SET";
    if (s.redis)
      r.peer_s = (median ? all_redis.p50 : all_redis.p99).median();
    if (median) {
      r.ratio_min = at.ratio_min;
      r.seconds_max = at.seconds_max;
      if (at.cores.first != at.cores.second)
        if (auto bare = bare_message_s())
          r.others.emplace_back("bare message and answer", *bare);
    }
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
  for (auto& at : placings())
    measure(s, memory, at);
  warm_load_latency(s);
}

} // namespace millrace::bench
