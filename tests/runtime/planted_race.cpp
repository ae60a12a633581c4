// The process of the thread sanitizer's gate. It makes one store through a socket on a thread of
// its own, while the first thread writes what a planted race writes.
#include <millrace/core/race_plant.hpp>
#include <millrace/runtime/node/node.hpp>
#include <millrace/storage/memory/memory_options.hpp>
#include <millrace/tests/support/scratch_directory.hpp>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

using namespace millrace;
using namespace std::chrono_literals;

namespace {

config::settings one_node(const std::string& directory) {
  config::settings s;
  s.node.name = "n0";
  s.node.listen = {"unix:" + directory + "/n0.sock"};
  s.staging.size_bytes = 4 << 20;
  config::provider_settings memory;
  memory.name = "fast";
  memory.options.edit<storage::memory_bucket_options>().capacity_bytes = 4 << 20;
  s.providers = {memory};
  s.nodes = {{s.node.name, s.node.listen, s.providers}};
  return s;
}

} // namespace

int main() {
  testing::scratch_directory directory;
  auto node = node::embed(one_node(directory.path()));
  auto client = client::connect(node.address());
  std::atomic<bool> stored = false;
  std::thread storing{[&] {
    std::vector<std::byte> bytes(100'000);
    client.repository()
      .store("m", {tensor_view::dense("t", dtype::u8, {bytes.size()}, std::span{bytes})})
      .get();
    stored.store(true, std::memory_order_relaxed);
  }};
  // Relaxed: whatever that thread and those it met have done, nothing orders it before what comes
  // now.
  auto deadline = std::chrono::steady_clock::now() + 60s;
  while (!stored.load(std::memory_order_relaxed) && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(5ms);
#if defined(MILLRACE_KILL_POINTS)
  race_plant::write();
#endif
  if (!stored.load(std::memory_order_relaxed)) {
    std::fputs("nothing was stored\n", stderr);
    std::_Exit(3);
  }
  storing.join();
  std::puts("stored");
}
