// A client in a process of its own: peer ADDRESS|CONFIG store|load|stall|flood|churn|rounds MODEL
// MIB SEED. What moved the bytes goes to stderr: "stored by tcp".
#include <millrace/tests/system/connecting.hpp>
#include <millrace/tests/system/sample.hpp>

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <iostream>
#include <string>
#include <vector>

using namespace millrace;
using testing::sample;

namespace {

struct task {
  client connection;
  std::string model;
  std::uint64_t mib;
  std::uint64_t seed;
};

int store(task& t) {
  auto s = sample::of_mib(t.mib).fill(t.seed);
  auto receipt = t.connection.repository().store(t.model, s.views).get();
  std::cout << "stored " << receipt.version << std::endl;
  std::cerr << "stored by " << receipt.driver << std::endl;
  return 0;
}

int load(task& t) {
  auto expected = sample::of_mib(t.mib).fill(t.seed);
  auto arrived = sample::of_mib(t.mib);
  std::vector<load_target> targets;
  for (auto& view : arrived.views)
    targets.push_back({view, {}});
  auto receipt = t.connection.repository().load(t.model, targets).get();
  bool same = arrived.bytes == expected.bytes;
  std::cout << (same ? "same" : "different") << (receipt.verified ? " verified" : "") << std::endl;
  std::cerr << "loaded by " << receipt.driver << std::endl;
  return same ? 0 : 3;
}

// A page of the memory that is stored. The first thread that copies it runs `at_page`.
constexpr std::size_t page_bytes = 4096;
std::byte* watched_page = nullptr;
std::atomic<bool> go_on = false;

void open_page() { ::mprotect(watched_page, page_bytes, PROT_READ | PROT_WRITE); }

void watch_page(sample& s, void (*at_page)(int)) {
  // The page is in the third of four layers.
  auto middle = reinterpret_cast<std::uintptr_t>(s.bytes[2].data() + s.bytes[2].size() / 2);
  watched_page = reinterpret_cast<std::byte*>(middle / page_bytes * page_bytes);
  ::signal(SIGSEGV, at_page);
  ::mprotect(watched_page, page_bytes, PROT_NONE);
}

// Stops in the middle of a store; goes on, or not, as its parent likes.
int stall(task& t) {
  auto s = sample::of_mib(t.mib).fill(t.seed);
  watch_page(s, [](int) {
    open_page();
    ::kill(::getpid(), SIGSTOP);
  });
  std::cout << "stored " << t.connection.repository().store(t.model, s.views).get().version
            << std::endl;
  return 0;
}

// Stops when many stores run and wait in the service.
int flood(task& t) {
  auto s = sample::of_mib(t.mib).fill(t.seed);
  watch_page(s, [](int) {
    while (!go_on)
      ::usleep(1000);
    open_page();
  });
  std::vector<future<receipt>> running;
  for (int i = 0; i < 80; ++i)
    running.push_back(t.connection.repository().store(t.model, s.views));
  while (t.connection.status().get().front()->providers.front().queued == 0)
    ::usleep(1000);
  raise(SIGSTOP);
  go_on = true;
  for (auto& store : running)
    std::cout << "stored " << store.get().version << std::endl;
  return 0;
}

int churn(task& t) {
  auto s = sample::of_mib(t.mib).fill(t.seed);
  while (true)
    std::cout << "stored " << t.connection.repository().store(t.model, s.views).get().version
              << std::endl;
}

// Other contents each time, loaded again; ends with the first failure.
int rounds(task& t) {
  for (; true; ++t.seed) {
    auto s = sample::of_mib(t.mib).fill(t.seed);
    auto receipt = t.connection.repository().store(t.model, s.views).get();
    std::cout << "stored " << t.seed << std::endl;
    std::cerr << "stored by " << receipt.driver << std::endl;
    if (load(t) != 0)
      return 3;
  }
}

} // namespace

int main(int argc, char** argv) {
  std::vector<std::string> words{argv + 1, argv + argc};
  if (words.size() != 5)
    return 2;
  try {
    task t{testing::connect_to(words[0]), words[2], std::stoull(words[3]), std::stoull(words[4])};
    return words[1] == "store" ? store(t)
      : words[1] == "load"     ? load(t)
      : words[1] == "stall"    ? stall(t)
      : words[1] == "flood"    ? flood(t)
      : words[1] == "churn"    ? churn(t)
      : words[1] == "rounds"   ? rounds(t)
                               : 2;
  } catch (const std::exception& e) {
    std::cerr << e.what() << std::endl;
    return 1;
  }
}
