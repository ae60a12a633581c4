// Tests reads by transfers over a fabric that fails, and that ends transfers when the test says so.
#include <millrace/runtime/client/calls/remote_reads.hpp>
#include <millrace/tests/support/fake_fabric.hpp>
#include <millrace/transport/copy/mover_pool.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <vector>

using namespace millrace;
using namespace millrace::runtime;

namespace {

constexpr std::size_t parts = 8, in_flight = 4;
constexpr std::uint64_t part_bytes = 100'000;

// Sometimes it has no memory.
struct poor_fabric : testing::fake_fabric {
  bool has_memory = true;

  result<std::shared_ptr<memory_source>> make_memory(
    const transport::arena_options& options) override {
    return has_memory ? fake_fabric::make_memory(options) : fail(errc::no_space, "none is left");
  }
};

// Reads of eight parts into memory that is not registered. Each part is a stage, and four of them
// are in flight.
struct reading_fixture {
  std::shared_ptr<poor_fabric> fabric = std::make_shared<poor_fabric>();
  std::shared_ptr<remote_reads> reads;
  bulk_handle from;
  std::vector<std::byte> memory = std::vector<std::byte>(parts * part_bytes);
  std::shared_ptr<std::atomic<bool>> stop = std::make_shared<std::atomic<bool>>(false);
  std::optional<result<void>> ended;

  reading_fixture() {
    fabric->with_movers = std::make_shared<transport::mover_pool>(1);
    actors::read_options options;
    options.inflight_bytes_min = options.inflight_bytes_max = in_flight * part_bytes;
    options.stages = in_flight;
    options.staging_bytes = 4u << 20;
    reads = std::make_shared<remote_reads>(fabric, options);
  }

  void read() {
    remote_read what;
    for (std::size_t i = 0; i < parts; ++i)
      what.parts.push_back({&from, i * part_bytes, part_bytes, memory.data() + i * part_bytes});
    what.into = memory;
    what.stop = stop;
    ended.reset();
    reads->read(std::move(what), [this](result<void> r) { ended = std::move(r); });
    await_movers(); // they make the staging memory
  }
  void await_movers() {
    std::promise<void> done;
    fabric->with_movers->submit(
      1, [](std::uint32_t) {}, [&] { done.set_value(); });
    done.get_future().wait();
  }

  void finish_one() {
    fabric->finish();
    if (!fabric->copying.empty())
      fabric->finish_copy();
  }
  void finish_all() {
    while (!fabric->waiting.empty())
      finish_one();
  }
  errc code() const { return !ended || *ended ? errc::ok : ended->error().code(); }
  bool has_arrived() const {
    return std::ranges::all_of(memory, [](auto b) { return b == std::byte{7}; });
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(reads_by_transfers, reading_fixture)

BOOST_AUTO_TEST_CASE(a_read_asks_for_the_next_part_when_one_has_come) {
  read();
  for (std::size_t left = parts; left > 0; --left) {
    BOOST_TEST(!ended);
    BOOST_TEST(fabric->waiting.size() == std::min(left, in_flight));
    finish_one();
  }
  BOOST_TEST((ended && *ended));
  BOOST_TEST(has_arrived());
}

BOOST_AUTO_TEST_CASE(a_transfer_that_fails_ends_its_read_when_nothing_writes_any_more) {
  read();
  finish_one();
  auto asked = fabric->submitted;
  fabric->fail_oldest({errc::peer_lost, "the peer is gone"});
  while (!fabric->waiting.empty()) {
    BOOST_TEST(!ended);
    finish_one();
  }
  BOOST_TEST((code() == errc::peer_lost));
  BOOST_TEST(fabric->submitted == asked);
  // The staging memory is back, also that of the part that has failed.
  for (int i = 0; i < 20; ++i) {
    read();
    fabric->fail_oldest({errc::peer_lost, "the peer is gone"});
    finish_all();
    BOOST_TEST((code() == errc::peer_lost));
  }
  read();
  finish_all();
  BOOST_TEST((ended && *ended));
  BOOST_TEST(has_arrived());
}

BOOST_AUTO_TEST_CASE(reads_of_others_go_on_beside_one_that_fails) {
  reading_fixture other;
  read();
  std::optional<result<void>> second;
  remote_read what{{{&from, 0, part_bytes, other.memory.data()}}, other.memory};
  reads->read(std::move(what), [&](result<void> r) { second = std::move(r); });
  fabric->fail_oldest({errc::io_error, "damaged on the way"});
  finish_all();
  BOOST_TEST((code() == errc::io_error));
  BOOST_TEST((second && *second));
  BOOST_TEST((other.memory[part_bytes - 1] == std::byte{7}));
}

BOOST_AUTO_TEST_CASE(a_read_that_is_stopped_ends_after_what_is_in_flight_and_copies_nothing) {
  read();
  *stop = true;
  while (!fabric->waiting.empty()) {
    BOOST_TEST(!ended);
    fabric->finish();
  }
  BOOST_TEST((code() == errc::cancelled));
  BOOST_TEST(fabric->submitted == in_flight);
  BOOST_TEST(fabric->copying.empty());
  BOOST_TEST(std::ranges::all_of(memory, [](auto b) { return b == std::byte{0}; }));
}

BOOST_AUTO_TEST_CASE(a_copy_that_fails_ends_its_read) {
  read();
  fabric->finish();
  fabric->fail_oldest_copy({errc::internal, "no mover"});
  finish_all();
  BOOST_TEST((code() == errc::internal));
}

BOOST_AUTO_TEST_CASE(without_staging_memory_a_read_fails_and_the_next_one_tries_again) {
  fabric->has_memory = false;
  read();
  BOOST_TEST((code() == errc::no_space));
  BOOST_TEST(ended->error().detail().find("reading.staging") != std::string::npos);
  fabric->has_memory = true;
  read();
  finish_all();
  BOOST_TEST((ended && *ended));
}

BOOST_AUTO_TEST_SUITE_END()
