// Copies in pieces of 1 MiB between warm buffers: by memcpy, by plain streaming stores (the floor
// of the other benchmarks), and as movers do, with digests and without.
// Run by hand: bench_copy_ways [ROUNDS].
#include <millrace/bench/common/floors.hpp>
#include <millrace/bench/common/measure.hpp>
#include <millrace/bench/common/model_table.hpp>
#include <millrace/core/digest.hpp>
#include <millrace/transport/copy/copy.hpp>
#include <millrace/transport/copy/digest_copy.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

using namespace millrace;
using namespace millrace::bench;

namespace {

constexpr std::size_t memory_bytes = 64u << 20; // more than the caches hold
constexpr std::uint32_t passes = 8;

void by_memcpy(std::byte* target, const std::byte* source, std::size_t size_bytes) {
  std::memcpy(target, source, size_bytes);
}

void by_movers(std::byte* target, const std::byte* source, std::size_t size_bytes) {
  transport::copy_bytes(target, source, size_bytes, transport::store_mode::streaming);
}

void by_movers_with_digests(std::byte* target, const std::byte* source, std::size_t size_bytes) {
  std::vector<std::uint64_t> digests(digest_count(size_bytes));
  transport::copy_and_digest(
    target, source, size_bytes, transport::store_mode::streaming, digests.data());
}

struct way {
  const char* name;
  decltype(plain_copy)& copy;
};

} // namespace

int main(int argc, char** argv) {
  auto rounds = argc > 1 ? std::max(std::atoi(argv[1]), 1) : 40;
  warm_buffer source{memory_bytes}, target{memory_bytes};
  source.fill_randomly(1);
  const way ways[] = {
    {"memcpy", by_memcpy},
    {"plain streaming", plain_copy},
    {"movers", by_movers},
    {"movers, digests", by_movers_with_digests}};
  auto most = std::max(std::thread::hardware_concurrency(), 1u);
  std::printf("%-18s %8s %12s\n", "way", "threads", "GB/s");
  for (unsigned threads = 1; threads <= most; threads *= 2) {
    contest c;
    std::vector<const samples*> times;
    for (auto& w : ways)
      times.push_back(&c.add(
        [&] { return timed_copy(source.bytes(), target.bytes(), threads, passes, w.copy); }));
    c.run(static_cast<std::size_t>(rounds));
    for (std::size_t i = 0; i < times.size(); ++i)
      std::printf(
        "%-18s %8u %12.2f\n", ways[i].name, threads,
        static_cast<double>(memory_bytes) * passes / times[i]->median() / 1e9);
  }
  return 0;
}
