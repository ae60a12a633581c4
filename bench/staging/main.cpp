// bench_staging: blocks of staging memory lent and returned by several threads at once, by lenders
// with the staging manager between them, by one lender, and by the allocator alone.
// See bench/README.md; scripts/bench staging runs it.
#include <millrace/actors/staging/staging_manager.hpp>
#include <millrace/bench/common/measure.hpp>
#include <millrace/bench/common/options.hpp>
#include <millrace/transport/memory/staging_pool.hpp>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/send.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
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
constexpr int lent_of_each = 20'000; // blocks that a thread is lent in a round, one after the other
constexpr std::uint64_t sizes_kib[] = {4, 1024, 8192};

// What lenders add to the allocator: a lock of the counts, and an owner that gives the block back.
constexpr double ratio_goal = 0.5;

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

void measure(unsigned threads, std::uint64_t size_kib, std::size_t rounds, report& out) {
  auto size_bytes = size_kib << 10;
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
  // Of each thread: from one block to the next.
  auto of_one = [](double seconds) { return seconds / lent_of_each; };
  auto lent = static_cast<double>(lent_of_each) * threads * static_cast<double>(rounds + 1);
  row r;
  r.name = fmt::format(
    "lend/{}/{}-threads",
    size_kib < 1024 ? fmt::format("{}KiB", size_kib) : fmt::format("{}MiB", size_kib / 1024),
    threads);
  for (auto seconds : by_each.values())
    r.ours.add(of_one(seconds));
  r.peer = "allocator alone";
  r.peer_s = of_one(by_pool.median());
  r.others = {{"one lender", of_one(by_one.median())}};
  r.stages = fmt::format(
    "calls of the manager for 1,000 blocks: {:.3f}",
    static_cast<double>(several.calls()) / lent * 1000);
  r.ratio_min = ratio_goal;
  out.add(std::move(r));
}

int run(const run_options& o) {
  auto out = begin_run(o);
  out.print_header();
  auto rounds = o.rounds > 0 ? o.rounds : o.quick ? 1 : 10;
  auto most = std::max(std::thread::hardware_concurrency(), 1u) * 2;
  for (auto size_kib : sizes_kib)
    for (unsigned threads = 1; threads <= most; threads *= 2)
      measure(threads, size_kib, rounds, out);
  return finish(out, o);
}

} // namespace

int main(int argc, char** argv) {
  try {
    run_options o;
    CLI::App app{"Blocks of staging memory lent to threads that do nothing else."};
    add_options(app, o, {"lend"});
    CLI11_PARSE(app, argc, argv);
    return run(o);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_staging: %s\n", e.what());
    return 1;
  }
}
