// Measures the latency of small models: wherever the kernel runs both ends, with both on one core,
// and with each on a core of its own.
#include <millrace/bench/common/cores.hpp>
#include <millrace/bench/store/sections.hpp>
#include <millrace/bench/store/tiny.hpp>

#include <fmt/format.h>

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
  samples ours_p50, ours_p99, redis_p50, redis_p99;
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
    ours_p50.add(ours.quantile(0.5));
    ours_p99.add(ours.quantile(0.99));
    redis_p50.add(redis.quantile(0.5));
    redis_p99.add(redis.quantile(0.99));
  }
  for (bool median : {true, false}) {
    row r;
    r.name = fmt::format("latency/4KiB/memory/sums/{}{}", at.name, median ? "p50" : "p99");
    r.size_bytes = tiny_bytes;
    r.ours = median ? ours_p50 : ours_p99;
    r.peer = "redis SET";
    if (s.redis)
      r.peer_s = (median ? redis_p50 : redis_p99).median();
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

} // namespace

void latency_section(stage& s, service& memory) {
  for (auto& at : placings())
    measure(s, memory, at);
}

} // namespace millrace::bench
