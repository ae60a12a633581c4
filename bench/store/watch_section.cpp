// Measures how soon a client that waits for a model hears of its publication, and what a service
// with many idle watches takes of a core.
#include <millrace/bench/common/child.hpp>
#include <millrace/bench/store/sections.hpp>
#include <millrace/bench/store/tiny.hpp>
#include <millrace/core/clock.hpp>

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace millrace::bench {

namespace {

using namespace std::chrono_literals;

constexpr std::size_t idle_watches = 10'000;

double seconds_between(std::uint64_t from_ns, std::uint64_t to_ns) {
  return static_cast<double>(static_cast<std::int64_t>(to_ns - from_ns)) * 1e-9;
}

// Another client stores. The time is from the publication, whose time the record has, to the
// wake-up. All clocks are of one host.
void wake(stage& s, service& memory) {
  auto table = tiny_table();
  auto repo = memory.repository();
  auto waits = memory.connect();
  std::uint64_t known =
    repo.store("woken", table.graph, table.over(s.source.bytes())).get().version;
  samples p50, p99, whole;
  for (std::size_t round = 0; round <= s.how.rounds; ++round) {
    samples woken, called;
    for (std::size_t i = 0; i < s.how.latency_requests / 4; ++i) {
      std::atomic<std::uint64_t> woken_ns = 0;
      auto newer = waits.repository().newer("woken", known);
      newer.then([&](const result<model_record>&) { woken_ns = wall_clock_ns(); });
      // The call parks the watch and looks once; both are over when a second look is.
      waits.repository().describe("woken").get();
      std::this_thread::sleep_for(200us);
      auto called_ns = wall_clock_ns();
      known = repo.store("woken", table.graph, table.over(s.source.bytes())).get().version;
      auto published_ns = newer.get().stored_at_ns;
      while (woken_ns == 0)
        std::this_thread::yield();
      woken.add(seconds_between(published_ns, woken_ns));
      called.add(seconds_between(called_ns, woken_ns));
    }
    if (round == 0)
      continue;
    p50.add(woken.median());
    p99.add(woken.quantile(0.99));
    whole.add(called.median());
  }
  row r;
  r.name = "watch/wake/p50";
  r.ours = p50;
  r.seconds_max = 100e-6;
  r.others.emplace_back("p99", p99.median());
  r.others.emplace_back("from the call of the store", whole.median());
  s.out.add(std::move(r));
}

// Core seconds that the service and the client spend in one second, with and without the watches.
void idle(stage& s, service& memory) {
  auto spent_in_a_second = [&] {
    auto spent = [&] { return memory.core_seconds() + core_seconds_of(0); };
    auto before = spent();
    std::this_thread::sleep_for(1s);
    return spent() - before;
  };
  samples without, with;
  for (std::size_t round = 0; round < s.how.rounds; ++round)
    without.add(spent_in_a_second());
  auto waits = memory.connect();
  std::vector<future<model_record>> all;
  for (std::size_t i = 0; i < idle_watches; ++i)
    all.push_back(waits.repository().newer(fmt::format("idle/{}", i), 0, 10min));
  auto parked = [&] {
    auto nodes = waits.status().get();
    return nodes.at(0)->providers.at(0).store.watches >= idle_watches;
  };
  while (!parked())
    std::this_thread::sleep_for(10ms);
  for (std::size_t round = 0; round < s.how.rounds; ++round)
    with.add(spent_in_a_second());
  for (auto& one : all)
    one.cancel();
  row r;
  r.name = fmt::format("watch/idle/{}", idle_watches);
  r.transfers = idle_watches;
  r.ours = with;
  r.seconds_max = 10e-3; // a hundredth of a core
  r.others.emplace_back("without watches", without.median());
  s.out.add(std::move(r));
}

} // namespace

void watch_section(stage& s, service& memory) {
  wake(s, memory);
  idle(s, memory);
}

} // namespace millrace::bench
