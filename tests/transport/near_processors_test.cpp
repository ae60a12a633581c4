// Tests which processors are near a device, and that movers are kept there and nowhere else.
#include "gpu_host.hpp"

#include <millrace/tests/support/skipped.hpp>
#include <millrace/transport/copy/mover_pool.hpp>
#include <millrace/transport/memory/memory_distance.hpp>

#include <boost/test/unit_test.hpp>
#include <sched.h>

#include <mutex>
#include <semaphore>
#include <set>
#include <thread>

using namespace millrace::testing;
using namespace millrace::transport;

namespace {

processor_list present_affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  BOOST_TEST_REQUIRE(sched_getaffinity(0, sizeof(set), &set) == 0);
  processor_list out;
  for (std::uint32_t i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &set))
      out.push_back(i);
  return out;
}

bool has_one_processor() {
  auto one = present_affinity().size() < 2;
  if (one)
    skipped("processors near devices: this process may use one processor only");
  return one;
}

// Where the chunks of a job ran: one set of processors for each thread that took some.
std::set<processor_list> places_of_chunks(mover_pool& movers) {
  std::mutex mutex;
  std::set<processor_list> out;
  std::binary_semaphore over{0};
  movers.submit(
    8,
    [&](std::uint32_t) {
      std::lock_guard guard{mutex};
      out.insert(present_affinity());
    },
    [&] { over.release(); });
  over.acquire();
  return out;
}

} // namespace

BOOST_AUTO_TEST_SUITE(near_processors)

BOOST_AUTO_TEST_CASE(processors_of_the_socket_of_a_device_are_near) {
  BOOST_TEST((processors_near_pci("0000:02:00.0", gpu_host) == processor_list{0}));
  BOOST_TEST((processors_near_device("mlx5_1", gpu_host) == processor_list{0}));
  BOOST_TEST((processors_near_device("mlx5_2", gpu_host) == processor_list{1}));
  BOOST_TEST(processors_near_pci("0000:77:00.0", gpu_host).empty());
  BOOST_TEST(processors_near_pci("", gpu_host).empty());
  BOOST_TEST(processors_near_device("mlx5_9", gpu_host).empty());
  BOOST_TEST(processors_near_device("mlx5_9").empty());
  BOOST_TEST((processors_near_devices({"mlx5_2", "mlx5_1"}, gpu_host) == processor_list{0, 1}));
  BOOST_TEST((processors_near_devices({"mlx5_0", "mlx5_1"}, gpu_host) == processor_list{0}));
  BOOST_TEST((processors_near_devices({"mlx5_9", "mlx5_2"}, gpu_host) == processor_list{1}));
  BOOST_TEST(processors_near_devices({}, gpu_host).empty());
}

BOOST_AUTO_TEST_CASE(processors_are_written_as_ranges) {
  BOOST_TEST(text_of({}) == "");
  BOOST_TEST(text_of({7}) == "7");
  BOOST_TEST(text_of({0, 1, 2, 3, 8}) == "0-3,8");
  BOOST_TEST(text_of({0, 2, 3, 5}) == "0,2-3,5");
}

BOOST_AUTO_TEST_CASE(a_thread_stays_among_the_processors_that_it_was_given) {
  if (has_one_processor())
    return;
  auto all = present_affinity();
  processor_list first{all[0]}, second{all[1]};
  std::thread{[&] {
    stay_on(first);
    BOOST_TEST(present_affinity() == first);
    stay_near(1); // nodes do not count meanwhile
    BOOST_TEST(present_affinity() == first);
    stay_on(second);
    BOOST_TEST(present_affinity() == second);
    stay_on({CPU_SETSIZE - 1}); // none that it may use
    BOOST_TEST(present_affinity() == all);
    stay_on({all[0], CPU_SETSIZE - 1});
    BOOST_TEST(present_affinity() == first);
    stay_on({});
    BOOST_TEST(present_affinity() == all);
  }}.join();
  std::thread{[&] {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(first[0], &set);
    BOOST_TEST_REQUIRE(sched_setaffinity(0, sizeof(set), &set) == 0);
    stay_on(second);
    BOOST_TEST(present_affinity() == first);
  }}.join();
}

BOOST_AUTO_TEST_CASE(movers_are_kept_while_somebody_asks_for_it) {
  if (has_one_processor())
    return;
  auto all = present_affinity();
  processor_list first{all[0]}, second{all[1]}, both{all[0], all[1]};
  for (std::uint32_t nice : {0u, 1u}) {
    mover_pool movers{2, 2, {nice, std::chrono::milliseconds{1}}};
    BOOST_TEST(movers.keep_on({}) == nullptr);
    BOOST_TEST((places_of_chunks(movers) == std::set{all}));
    auto near = movers.keep_on(first);
    BOOST_TEST(movers.kept_on() == first);
    BOOST_TEST((places_of_chunks(movers) == std::set{first}));
    BOOST_TEST((places_of_chunks(movers.devices()) == std::set{first}));
    auto other = movers.keep_on(second);
    BOOST_TEST((places_of_chunks(movers) == std::set{both}));
    near = nullptr;
    BOOST_TEST((places_of_chunks(movers) == std::set{second}));
    other = nullptr;
    BOOST_TEST(movers.kept_on().empty());
    BOOST_TEST((places_of_chunks(movers) == std::set{all}));
    BOOST_TEST((places_of_chunks(movers.devices()) == std::set{all}));
  }
  BOOST_TEST(present_affinity() == all); // that of the program
}

BOOST_AUTO_TEST_SUITE_END()
