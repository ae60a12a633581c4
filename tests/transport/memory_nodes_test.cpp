// Tests that movers copy on processors near the memory that they write, where a machine has several
// nodes. A guest of the lab has two.
#include <millrace/tests/support/exposed_matrix.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/skipped.hpp>
#include <millrace/transport/copy/copy_job.hpp>
#include <millrace/transport/fabric.hpp>
#include <millrace/transport/memory/memory_distance.hpp>

#include <boost/test/unit_test.hpp>
#include <hwloc.h>
#include <sched.h>

#include <bit>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <thread>

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::net;
using namespace millrace::transport;

namespace {

constexpr std::uint64_t block_bytes = 1u << 20;

unsigned present_node() {
  unsigned cpu = 0, node = 0;
  getcpu(&cpu, &node);
  return node;
}

struct nodes_fixture {
  nodes_fixture() {
    hwloc_topology_init(&topology);
    hwloc_topology_load(topology);
  }
  ~nodes_fixture() {
    for (auto* data : blocks)
      hwloc_free(topology, data, block_bytes);
    hwloc_topology_destroy(topology);
  }
  nodes_fixture(const nodes_fixture&) = delete;
  nodes_fixture& operator=(const nodes_fixture&) = delete;

  // Memory of one node, touched.
  std::byte* block_on(unsigned node) {
    auto* only = hwloc_bitmap_alloc();
    hwloc_bitmap_only(only, node);
    auto* data = hwloc_alloc_membind(
      topology, block_bytes, only, HWLOC_MEMBIND_BIND,
      HWLOC_MEMBIND_BYNODESET | HWLOC_MEMBIND_STRICT);
    hwloc_bitmap_free(only);
    BOOST_TEST_REQUIRE(data != nullptr);
    blocks.push_back(data);
    std::fill_n(static_cast<std::byte*>(data), block_bytes, std::byte{1});
    return static_cast<std::byte*>(data);
  }

  // Copies into the block; returns the nodes on which its movers ran.
  std::set<unsigned> nodes_of_copy(mover_pool& movers, std::byte* into) {
    exposed_matrix source{{1, block_bytes, 0}, access_mode::read, 3};
    auto h = source.handle();
    std::set<unsigned> nodes;
    copy_job job{
      .dir = direction::read,
      .memory = find_region(h.region, h.key, h.allows).value(),
      .ops = {{.remote_offset = 0, .local = into, .length = block_bytes}},
      .digests = false,
      .write_back = false,
      .hold = nullptr,
      .abandoned = nullptr,
      .prepare = [&nodes](std::byte*, std::uint64_t) {
        nodes.insert(present_node());
        return status{};
      }};
    held_completion<copied> done;
    run_copy_job(movers, {.chunk_bytes = block_bytes / 16}, std::move(job), done.callback());
    BOOST_TEST_REQUIRE(done.take().has_value());
    BOOST_TEST((std::vector(into, into + block_bytes) == pattern(block_bytes, 3)));
    return nodes;
  }

  hwloc_topology_t topology = nullptr;
  std::vector<void*> blocks;
};

// Where the lab has set MILLRACE_TEST_NODES a single node fails the test.
bool has_one_node() {
  auto several = std::filesystem::exists("/sys/devices/system/node/node1");
  BOOST_TEST_REQUIRE((several || !std::getenv("MILLRACE_TEST_NODES")), "there is one memory node");
  if (!several)
    skipped("copies near memory: this machine has one memory node");
  return !several;
}

} // namespace

BOOST_FIXTURE_TEST_SUITE(memory_nodes, nodes_fixture)

BOOST_AUTO_TEST_CASE(a_mover_copies_where_it_writes) {
  if (has_one_node())
    return;
  mover_pool movers{1, 1};
  std::byte* blocks[] = {block_on(0), block_on(1)};
  for (int round = 0; round < 3; ++round)
    for (unsigned node : {0u, 1u}) {
      BOOST_TEST(std::popcount(node_mask_of_memory(blocks[node], block_bytes)) == 1);
      BOOST_TEST((nodes_of_copy(movers, blocks[node]) == std::set{node}));
    }
}

BOOST_AUTO_TEST_CASE(a_thread_leaves_no_processor_that_it_was_given) {
  if (has_one_node())
    return;
  auto* here = block_on(0);
  auto* there = block_on(1);
  std::thread{[&] {
    cpu_set_t first;
    CPU_ZERO(&first);
    CPU_SET(0, &first);
    BOOST_TEST_REQUIRE(sched_setaffinity(0, sizeof(first), &first) == 0);
    stay_near_memory(there);
    BOOST_TEST(present_node() == 0u);
    stay_near_memory(here);
    cpu_set_t now;
    BOOST_TEST(sched_getaffinity(0, sizeof(now), &now) == 0);
    BOOST_TEST(CPU_EQUAL(&first, &now));
  }}.join();
}

// One node, or memory that is not there yet: nothing is bound.
BOOST_AUTO_TEST_CASE(a_thread_without_a_place_to_go_stays_free) {
  std::thread{[] {
    cpu_set_t before, after;
    BOOST_TEST(sched_getaffinity(0, sizeof(before), &before) == 0);
    stay_near(0);
    stay_near_memory(nullptr);
    BOOST_TEST(sched_getaffinity(0, sizeof(after), &after) == 0);
    BOOST_TEST(CPU_EQUAL(&before, &after));
  }}.join();
}

BOOST_AUTO_TEST_SUITE_END()
