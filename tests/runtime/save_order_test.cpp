// Tests the order of saves that are sent by the trainer's thread, by the I/O loop, and by both.
#include "one_pool.hpp"

#include <millrace/runtime/client/checkpointer.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

using namespace millrace;
using namespace std::chrono_literals;
namespace data = boost::unit_test::data;

namespace {

// Every byte is that of the step.
struct one_tensor {
  std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(40'000);

  std::vector<tensor_view> views() {
    return {{{"t", dtype::u8, {bytes.size()}}, reinterpret_cast<std::byte*>(bytes.data()), {}}};
  }
  void become(std::uint64_t step) { std::ranges::fill(bytes, static_cast<std::uint8_t>(step)); }
  bool is(std::uint64_t step) const {
    return std::ranges::all_of(
      bytes, [&](auto byte) { return byte == static_cast<std::uint8_t>(step); });
  }
};

checkpoint_options patient() {
  checkpoint_options o;
  o.model = "m";
  o.timeout = 30s;
  return o;
}

// The saves of a trainer that waits for some until they are read, for some until they are durable,
// and for some not at all. A provider refuses a step that comes after a later one, or takes it for
// that of a job that went back: then it is the newest at the end.
void save_in_order(checkpointer& job, one_tensor& tensors, std::uint64_t steps) {
  std::mt19937 random{17};
  std::vector<pending_save> saves;
  for (std::uint64_t step = 1; step <= steps; ++step) {
    if (saves.empty())
      tensors.become(step); // nothing reads them
    saves.push_back(job.save(step));
    auto how = random() % 4;
    if (how == 0) {
      BOOST_TEST_REQUIRE(job.fence().ok());
    } else if (how == 1 || saves.size() == 3 || step == steps) {
      for (auto& save : saves) {
        auto durable = save.durable.result();
        BOOST_TEST_REQUIRE(durable.has_value(), (durable ? "" : durable.error().to_string()));
        BOOST_TEST_REQUIRE(durable->step == save.step);
      }
      saves.clear();
    }
  }
}

} // namespace

BOOST_AUTO_TEST_SUITE(save_order)

BOOST_DATA_TEST_CASE(steps_arrive_in_their_order, data::make({true, false}), over_socket) {
  testing::one_pool s;
  auto c = s.by(over_socket);
  one_tensor tensors;
  auto job = c.checkpointer(patient(), tensors.views()).get();
  save_in_order(job, tensors, 300);
  tensors.become(0);
  BOOST_TEST(job.restore().get().version == 300u);
  BOOST_TEST((job.describe().get().complete_steps.back() == 300u));
  BOOST_TEST(job.close().ok());
}

// The other threads run the I/O loop while the trainer sends.
BOOST_AUTO_TEST_CASE(steps_arrive_in_their_order_while_other_threads_use_the_client) {
  testing::one_pool s;
  auto c = s.by(true);
  one_tensor tensors;
  auto job = c.checkpointer(patient(), tensors.views()).get();
  {
    std::vector<std::jthread> others;
    for (int i = 0; i < 2; ++i)
      others.emplace_back([&c](const std::stop_token& over) {
        while (!over.stop_requested())
          static_cast<void>(c.status().result());
      });
    save_in_order(job, tensors, 200);
  }
  BOOST_TEST(job.restore().get().version == 200u);
  BOOST_TEST(job.close().ok());
}

// What is read is what the tensors held when their trainer saved, also if it waits for each save.
BOOST_AUTO_TEST_CASE(a_save_that_is_sent_at_once_reads_its_own_step) {
  testing::one_pool s;
  auto c = s.by(true);
  one_tensor tensors;
  auto job = c.checkpointer(patient(), tensors.views()).get();
  for (std::uint64_t step = 1; step <= 50; ++step) {
    tensors.become(step);
    auto save = job.save(step);
    BOOST_TEST_REQUIRE(job.fence().ok());
    tensors.become(0);
    BOOST_TEST_REQUIRE(save.durable.get().step == step);
    BOOST_TEST_REQUIRE(job.restore().get().version == step);
    BOOST_TEST_REQUIRE(tensors.is(step));
  }
  BOOST_TEST(job.close().ok());
}

BOOST_AUTO_TEST_SUITE_END()
