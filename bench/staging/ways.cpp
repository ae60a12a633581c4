// Blocks of staging memory lent and returned by several threads at once: by the allocator alone, by
// one lender, and by a lender for each thread with the staging manager between them.
// Run by hand: bench_staging_ways [ROUNDS].
#include <millrace/actors/staging/staging_manager.hpp>
#include <millrace/bench/common/measure.hpp>
#include <millrace/transport/memory/staging_pool.hpp>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/send.hpp>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using namespace millrace;
using namespace millrace::bench;
using actors::staging_lender;

namespace {

constexpr std::uint64_t memory_bytes = 256u << 20;
constexpr int lent_of_each = 20'000; // blocks that a thread is lent, one after the other

// What is lent of each of these sizes goes through all ways.
constexpr std::uint64_t sizes[] = {4u << 10, 1u << 20, 8u << 20};

std::shared_ptr<memory_source> make_pool() {
  return transport::make_staging_pool(need(
    transport::arena::create({.name = "bench", .size_bytes = memory_bytes, .lock = false}),
    "making the arena"));
}

double by_threads(unsigned threads, const std::function<void(unsigned)>& lend_all) {
  return seconds_of([&] {
    std::vector<std::thread> all;
    for (unsigned i = 0; i < threads; ++i)
      all.emplace_back(lend_all, i);
    for (auto& t : all)
      t.join();
  });
}

// A block that must be waited for comes on another thread.
void lend_by(staging_lender& lender, std::uint64_t size_bytes) {
  auto came = std::make_shared<std::atomic<int>>(0);
  for (int i = 0; i < lent_of_each; ++i) {
    lender.ask({}, size_bytes, [came](result<memory_block> block) {
      need(std::move(block), "asking for a block").owner.reset();
      ++*came;
      came->notify_one();
    });
    came->wait(i);
  }
}

struct managed {
  caf::actor_system_config config;
  caf::actor_system system{config};
  std::shared_ptr<actors::staging_memory> memory =
    std::make_shared<actors::staging_memory>(make_pool());
  actors::staging_manager_actor manager = actors::spawn_staging_manager(system, {memory}, {});
  std::vector<std::shared_ptr<staging_lender>> lenders;

  explicit managed(unsigned threads) {
    for (unsigned i = 0; i < threads; ++i)
      lenders.push_back(std::make_shared<staging_lender>(memory, std::to_string(i), memory_bytes));
  }
  ~managed() { caf::anon_send_exit(manager, caf::exit_reason::kill); }

  std::uint64_t calls() const {
    std::uint64_t all = 0;
    for (auto& one : memory->report())
      all += one.calls;
    return all;
  }
};

void measure(unsigned threads, std::uint64_t size_bytes, std::size_t rounds) {
  auto pool = make_pool();
  auto alone = std::make_shared<staging_lender>(make_pool());
  managed several{threads};
  contest c;
  auto& by_pool = c.add([&] {
    return by_threads(threads, [&](unsigned) {
      for (int i = 0; i < lent_of_each; ++i)
        need(pool->allocate(size_bytes, 4096), "allocating");
    });
  });
  auto& by_one =
    c.add([&] { return by_threads(threads, [&](unsigned) { lend_by(*alone, size_bytes); }); });
  auto& by_each = c.add([&] {
    return by_threads(threads, [&](unsigned i) { lend_by(*several.lenders[i], size_bytes); });
  });
  c.run(rounds);
  auto ns = [&](const samples& s) { return s.median() / lent_of_each * 1e9; };
  auto lent = static_cast<double>(lent_of_each) * threads * static_cast<double>(rounds + 1);
  std::printf(
    "%7u %10llu %12.0f %12.0f %12.0f %18.3f\n", threads,
    static_cast<unsigned long long>(size_bytes), ns(by_pool), ns(by_one), ns(by_each),
    static_cast<double>(several.calls()) / lent * 1000);
}

} // namespace

int main(int argc, char** argv) {
  auto rounds = argc > 1 ? std::max(std::atoi(argv[1]), 1) : 10;
  std::printf(
    "%7s %10s %12s %12s %12s %18s\n", "threads", "bytes", "allocator ns", "lender ns", "managed ns",
    "calls for 1000");
  auto most = std::max(std::thread::hardware_concurrency(), 1u) * 2;
  for (auto size_bytes : sizes)
    for (unsigned threads = 1; threads <= most; threads *= 2)
      measure(threads, size_bytes, static_cast<std::size_t>(rounds));
  return 0;
}
