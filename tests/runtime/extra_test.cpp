// The user's bytes from `save` to `restore`: a node in this process with a pool, asked directly and
// through its socket.
#include <millrace/runtime/node/node.hpp>
#include <millrace/storage/flush/flushed_step.hpp>
#include <millrace/storage/pmem/pmem_kind.hpp>
#include <millrace/tests/support/process.hpp>
#include <millrace/tests/support/scratch_directory.hpp>
#include <millrace/transport/fabric_options.hpp>
#include <millrace/transport/memory/region.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

using namespace millrace;
using namespace std::chrono_literals;
namespace data = boost::unit_test::data;

namespace {

using testing::scratch_directory;

constexpr std::uint64_t mib = 1 << 20;
constexpr std::uint64_t extra_max = 16 * mib;

struct extra_service {
  explicit extra_service(bool in_memory = true) : pool_in_memory(in_memory) {
    settings.node.name = "n0";
    settings.node.listen = {"unix:" + dir.path() + "/n0.sock"};
    settings.staging.size_bytes = 64 * mib;
    settings.checkpoints.staging_piece_bytes = mib;
    settings.checkpoints.staging_pieces = 4;
    config::provider_settings pool;
    pool.name = "pool";
    pool.bucket = "pmem";
    auto& options = pool.options.edit<storage::pmem_options>();
    options.pool.capacity_bytes = 160 * mib;
    options.pool.path = (pool_in_memory ? memory.path() : dir.path()) + "/p.pool";
    settings.providers = {pool};
    start();
  }

  void start() {
    settings.nodes = {{settings.node.name, settings.node.listen, settings.providers}};
    n.emplace(node::embed(settings));
  }
  void restart() {
    n.reset();
    start();
  }
  client connect(bool over_socket = true) {
    return over_socket ? client::connect(settings.node.listen.front()) : n->client();
  }

  scratch_directory dir;
  scratch_directory memory{"/dev/shm"}; // there slots are used in place
  bool pool_in_memory;
  config::settings settings;
  std::optional<node> n;
};

std::vector<std::byte> bytes_of(std::uint64_t seed, std::uint64_t size_bytes) {
  std::mt19937_64 random{seed};
  std::vector<std::byte> bytes(size_bytes);
  for (auto& b : bytes)
    b = static_cast<std::byte>(random());
  return bytes;
}

/// One rank with one tensor.
struct trainer {
  explicit trainer(client at, std::uint32_t rank = 0, std::uint32_t world_size = 1)
    : c(std::move(at)), tensor(700'000) {
    checkpoint_options options;
    options.model = "m";
    options.rank = rank;
    options.world_size = world_size;
    options.timeout = 30s;
    saver.emplace(
      c.checkpointer(options, {{{"w", dtype::u8, {tensor.size()}}, tensor.data(), {}}}).get());
  }

  result<save_receipt> save(
    std::uint64_t step, std::span<const std::byte> extra, save_mode mode = save_mode::direct) {
    std::ranges::fill(tensor, static_cast<std::byte>(step));
    return saver->save(step, mode, extra).durable.result();
  }

  client c;
  std::vector<std::byte> tensor;
  std::optional<checkpointer> saver;
};

bool is(const std::vector<std::uint8_t>& bytes, std::span<const std::byte> expected) {
  return bytes.size() == expected.size() &&
    (bytes.empty() || std::memcmp(bytes.data(), expected.data(), bytes.size()) == 0);
}

} // namespace

BOOST_AUTO_TEST_SUITE(extra_tests)

BOOST_DATA_TEST_CASE(
  a_restore_returns_the_bytes_of_its_step, data::make({true, false}) * data::make({true, false}),
  over_socket, in_memory) {
  extra_service s{in_memory};
  trainer t{s.connect(over_socket)};
  BOOST_TEST(t.saver->registration().extra_bytes_max == extra_max);
  std::uint64_t eager = transport::fabric_options{}.eager_bytes_max;
  std::uint64_t step = 0, before = 0;
  for (auto size :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{4096}, eager - 1, eager, eager + 1,
        extra_max, std::uint64_t{9}, std::uint64_t{0}}) {
    ++step;
    auto mode = step % 2 == 0 ? save_mode::snapshot : save_mode::direct;
    auto saved = t.save(step, bytes_of(step, size), mode);
    BOOST_REQUIRE_MESSAGE(saved, (saved ? "" : saved.error().to_string()));
    BOOST_TEST(saved->size_bytes == t.tensor.size());
    auto receipt = t.saver->restore().get();
    BOOST_TEST(receipt.version == step);
    BOOST_TEST(is(receipt.extra, bytes_of(step, size)));
    BOOST_TEST((t.tensor == std::vector<std::byte>(700'000, static_cast<std::byte>(step))));
    if (step > 1)
      BOOST_TEST(is(t.saver->restore(step - 1).get().extra, bytes_of(step - 1, before)));
    before = size;
  }
}

BOOST_AUTO_TEST_CASE(they_are_copied_before_save_returns) {
  extra_service s;
  trainer t{s.connect()};
  auto bytes = bytes_of(1, mib);
  auto saving = t.saver->save(1, save_mode::direct, bytes);
  std::ranges::fill(bytes, std::byte{0});
  BOOST_TEST(saving.durable.result().has_value());
  BOOST_TEST(is(t.saver->restore().get().extra, bytes_of(1, mib)));
}

BOOST_AUTO_TEST_CASE(more_than_the_bound_is_refused_and_the_next_save_goes_on) {
  extra_service s;
  trainer t{s.connect()};
  auto refused = t.save(1, bytes_of(1, extra_max + 1));
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::invalid_argument));
  BOOST_TEST(refused.error().detail().find("checkpoints.extra_max") != std::string::npos);
  BOOST_TEST(t.saver->fence().ok());
  BOOST_TEST(t.save(2, bytes_of(2, 10)).has_value());
  BOOST_TEST(t.saver->restore().get().version == 2u);
}

BOOST_AUTO_TEST_CASE(a_bound_of_zero_keeps_none) {
  extra_service s;
  s.settings.checkpoints.extra_bytes_max = 0;
  s.restart();
  trainer t{s.connect()};
  auto refused = t.save(1, bytes_of(1, 1));
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::unsupported));
  BOOST_TEST(t.save(2, {}).has_value());
}

// As after a return to an older build, which would save the tensors alone.
BOOST_AUTO_TEST_CASE(a_service_that_keeps_none_after_a_restart_refuses_them) {
  extra_service s;
  trainer t{s.connect()};
  BOOST_TEST(t.save(1, bytes_of(1, 10)).has_value());
  s.settings.checkpoints.extra_bytes_max = 0;
  s.restart();
  std::uint64_t step = 1;
  BOOST_TEST_REQUIRE(testing::eventually([&] { return t.save(++step, {}).has_value(); }));
  auto refused = t.save(++step, bytes_of(1, 10));
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::unsupported), refused.error().to_string());
  BOOST_TEST(t.save(++step, {}).has_value());
}

BOOST_AUTO_TEST_CASE(each_rank_has_its_own_and_they_are_there_after_a_restart) {
  extra_service s;
  {
    trainer left{s.connect(), 0, 2}, right{s.connect(), 1, 2};
    BOOST_TEST(left.save(1, bytes_of(10, 5000)).has_value());
    BOOST_TEST(right.save(1, bytes_of(11, 3 * mib)).has_value());
  }
  s.restart();
  auto c = s.connect();
  std::vector<std::byte> memory(700'000);
  auto target = [&] {
    return std::vector<tensor_view>{{{"w", dtype::u8, {memory.size()}}, memory.data(), {}}};
  };
  auto all = c.checkpoints();
  BOOST_TEST(is(all.load("m", 0, {}, target()).get().extra, bytes_of(10, 5000)));
  BOOST_TEST(is(all.load("m", 1, 1, target()).get().extra, bytes_of(11, 3 * mib)));
  trainer left{s.connect(), 0, 2};
  BOOST_TEST(is(left.saver->restore_shard(1, target()).get().extra, bytes_of(11, 3 * mib)));
}

BOOST_AUTO_TEST_CASE(nothing_stays_exposed_when_the_save_is_over) {
  extra_service s;
  auto before = transport::exposed_regions();
  {
    trainer t{s.connect()};
    BOOST_TEST(t.save(1, bytes_of(1, mib)).has_value());
    BOOST_TEST(is(t.saver->restore().get().extra, bytes_of(1, mib)));
    BOOST_TEST(t.saver->close().ok());
  }
  BOOST_TEST(testing::eventually([&] { return transport::exposed_regions() == before; }));
}

BOOST_AUTO_TEST_CASE(flushed_steps_have_them_too) {
  extra_service s;
  scratch_directory slow;
  auto& flush = s.settings.providers[0].options.edit<storage::pmem_options>().flush;
  flush.flush.directory = slow.path();
  s.restart();
  trainer t{s.connect()};
  BOOST_TEST(t.save(1, bytes_of(1, 300'000)).has_value());
  BOOST_TEST(testing::eventually(
    [&] { return storage::flush::open_flushed(slow.path(), "m").has_value(); }));
  auto step = storage::flush::open_flushed(slow.path(), "m");
  BOOST_REQUIRE(step);
  BOOST_TEST(step->verify().ok());
  auto source = step->open_shard(0);
  BOOST_REQUIRE(source);
  auto extra = (*source)->extra();
  BOOST_REQUIRE(extra);
  BOOST_TEST((*extra == bytes_of(1, 300'000)));
}

BOOST_AUTO_TEST_SUITE_END()
