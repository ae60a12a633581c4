// The process that crash tests kill. It flushes steps FIRST to LAST of two ranks, and prints a line
// for each whole step.
#include <millrace/storage/flush/version_flusher.hpp>
#include <millrace/tests/support/opened_in_memory.hpp>

#include <iostream>

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::storage;
using namespace millrace::storage::flush;

int main(int argc, char** argv) {
  if (argc != 4)
    return 2;
  std::ios::sync_with_stdio(false); // a recorder sees what is printed
  auto flusher = version_flusher::open({.directory = argv[1], .keep = 2});
  if (!flusher) {
    std::cout << flusher.error().to_string() << std::endl;
    return 1;
  }
  for (auto step = std::stoull(argv[2]); step <= std::stoull(argv[3]); ++step) {
    for (std::uint32_t rank : {0, 1}) {
      auto version =
        std::make_shared<opened_in_memory>(shard_at(rank, step, 300'000), step, step * 10 + rank);
      auto outcome = flusher->flush({"model", rank, 2, {}, version}, std::atomic<bool>{false});
      if (!outcome) {
        std::cout << outcome.error().to_string() << std::endl;
        return 1;
      }
    }
    std::cout << step << std::endl;
  }
  return 0;
}
