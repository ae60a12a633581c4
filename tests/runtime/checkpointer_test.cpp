// Tests checkpoints end to end: a node in this process with a pool is asked directly and through
// its socket.
#include "one_pool.hpp"

#include <millrace/runtime/client/calls/placement.hpp>
#include <millrace/runtime/node/node.hpp>
#include <millrace/storage/flush/flushed_step.hpp>
#include <millrace/storage/memory/memory_options.hpp>
#include <millrace/storage/pmem/pmem_kind.hpp>
#include <millrace/tests/support/process.hpp>
#include <millrace/tests/support/scratch_directory.hpp>
#include <millrace/transport/memory/region.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <cstring>
#include <optional>
#include <random>
#include <thread>
#include <vector>

using namespace millrace;
using namespace std::chrono_literals;
namespace data = boost::unit_test::data;

namespace {

using testing::scratch_directory;

using service = testing::one_pool;
using testing::with_pool;

// Tensors of every odd kind: large, small, scalar, without elements, with gaps between their rows.
struct model {
  static constexpr std::uint64_t rows = 300, columns = 500, row_bytes = 4096;

  model() : large(2'300'000), strided(rows * row_bytes) {}

  std::vector<std::byte> large;
  std::vector<std::byte> small = std::vector<std::byte>(100);
  double scalar = 0;
  std::vector<std::byte> strided;

  std::vector<tensor_view> views() {
    return {
      {{"large", dtype::u8, {large.size()}}, large.data(), {}},
      {{"none", dtype::f32, {4, 0}}, nullptr, {}},
      {{"scalar", dtype::f64, {}}, reinterpret_cast<std::byte*>(&scalar), {}},
      {{"strided", dtype::f32, {rows, columns}}, strided.data(), {row_bytes, 4}},
      {{"small", dtype::u8, {small.size()}}, small.data(), {}}};
  }

  // Trains: everything becomes a function of the step.
  void become(std::uint64_t step) {
    std::mt19937_64 random{step};
    for (auto& b : large)
      b = static_cast<std::byte>(random());
    for (auto& b : small)
      b = static_cast<std::byte>(random());
    scalar = static_cast<double>(random());
    for (std::uint64_t r = 0; r < rows; ++r)
      for (std::uint64_t c = 0; c < columns * 4; ++c)
        strided[r * row_bytes + c] = static_cast<std::byte>(random());
  }

  bool is(std::uint64_t step) const {
    model expected;
    expected.become(step);
    bool same = large == expected.large && small == expected.small && scalar == expected.scalar;
    for (std::uint64_t r = 0; r < rows; ++r)
      same &= std::memcmp(
                strided.data() + r * row_bytes, expected.strided.data() + r * row_bytes,
                columns * 4) == 0;
    return same;
  }
};

checkpoint_options named(const std::string& name, std::uint32_t rank = 0, std::uint32_t world = 1) {
  checkpoint_options o;
  o.model = name;
  o.rank = rank;
  o.world_size = world;
  o.timeout = 30s;
  return o;
}

status saved(checkpointer& c, model& m, std::uint64_t step, save_mode mode = save_mode::direct) {
  m.become(step);
  auto save = c.save(step, mode);
  auto durable = save.durable.result();
  return durable ? status{} : durable.error();
}

} // namespace

BOOST_AUTO_TEST_SUITE(checkpointer_tests)

BOOST_AUTO_TEST_CASE(complete_steps_are_copied_on_and_the_latest_moves_last) {
  service s;
  s.stop();
  scratch_directory slow;
  auto& flush = s.settings.providers[0].options.edit<storage::pmem_options>().flush;
  flush.flush.directory = slow.path();
  flush.every = 2;
  s.settings.nodes[0].providers = s.settings.providers;
  s.start();
  auto client = s.connect();
  model left, right;
  auto first = client.checkpointer(named("m", 0, 2), left.views()).get();
  auto second = client.checkpointer(named("m", 1, 2), right.views()).get();
  for (std::uint64_t step = 1; step <= 5; ++step) {
    BOOST_TEST(saved(first, left, step).ok());
    BOOST_TEST(saved(second, right, step).ok());
  }
  auto latest_is = [&](std::uint64_t step) {
    auto opened = storage::flush::open_flushed(slow.path(), "m");
    return opened && opened->manifest().step == step;
  };
  // Steps may be passed over while another one is copied; the last one asked for never is.
  BOOST_TEST(testing::eventually([&] { return latest_is(4); }));
  auto step = storage::flush::open_flushed(slow.path(), "m");
  BOOST_REQUIRE(step);
  auto whole = step->verify();
  BOOST_TEST(whole.ok(), whole.to_string());
  BOOST_TEST(step->manifest().shards.size() == 2);
  auto described = first.describe().get();
  BOOST_TEST(described.shards.at(0).slots.size() == 3);
  auto flushed = [&] { return client.status().get().at(0)->providers.at(0).checkpoints.flushed; };
  // Counted once the thread that copies has come home.
  BOOST_TEST(testing::eventually([&] { return flushed().waiting == 0; }));
  BOOST_TEST(flushed().steps >= 1u);
  BOOST_TEST(flushed().failures == 0u);
  BOOST_TEST(flushed().bytes > 0u);
}

BOOST_DATA_TEST_CASE(
  what_was_saved_is_restored_in_place, data::make({true, false}) * data::make({true, false}),
  over_socket, in_memory) {
  service s{in_memory};
  auto c = over_socket ? s.connect() : *s.direct;
  model m;
  auto checkpoints = c.checkpointer(named("m"), m.views()).get();
  BOOST_TEST(!checkpoints.registration().resumed);
  // What rests in memory survives the process, not the machine.
  BOOST_TEST(checkpoints.registration().durable == !in_memory);
  for (std::uint64_t step = 1; step <= 3; ++step) {
    m.become(step);
    auto save = checkpoints.save(step);
    BOOST_TEST(checkpoints.fence().to_string() == status{}.to_string());
    auto staged = save.staged.get();
    BOOST_TEST(staged.step == step);
    auto durable = save.durable.get();
    BOOST_TEST(durable.durable == !in_memory);
    BOOST_TEST(durable.complete);
    BOOST_TEST(durable.size_bytes == 2'300'000u + 8 + 600'000 + 100);
    BOOST_TEST(durable.path == (in_memory ? "direct" : "staged"));
    BOOST_TEST(durable.driver == "local");
  }
  m.become(99);
  auto receipt = checkpoints.restore().get();
  BOOST_TEST(receipt.version == 3u);
  BOOST_TEST(receipt.verified);
  BOOST_TEST(m.is(3));
  BOOST_TEST(checkpoints.restore(2).get().version == 2u);
  BOOST_TEST(m.is(2));
  auto gone = checkpoints.restore(1).result();
  BOOST_TEST((gone.error().code() == errc::not_found));
  BOOST_TEST(m.is(2));
  BOOST_TEST((checkpoints.describe().get().complete_steps == std::vector<std::uint64_t>{2, 3}));
  BOOST_TEST(checkpoints.close().ok());
  BOOST_TEST(transport::exposed_regions() == 0u);
}

BOOST_DATA_TEST_CASE(
  a_snapshot_keeps_the_bytes_of_its_instant, data::make({true, false}) * data::make({true, false}),
  over_socket, in_memory) {
  service s{in_memory};
  auto c = over_socket ? s.connect() : *s.direct;
  model m;
  auto checkpoints = c.checkpointer(named("m"), m.views()).get();
  m.become(7);
  auto save = checkpoints.save(7, save_mode::snapshot);
  BOOST_TEST(save.staged.get().step == 7u);
  m.become(8);
  BOOST_TEST(save.durable.get().path == "staged");
  BOOST_TEST(checkpoints.restore().get().version == 7u);
  BOOST_TEST(m.is(7));
}

BOOST_AUTO_TEST_CASE(a_dtype_or_shape_that_differs_is_an_error_before_any_byte_moves) {
  service s;
  model m;
  auto checkpoints = s.direct->checkpointer(named("m"), m.views()).get();
  BOOST_TEST(saved(checkpoints, m, 1).ok());
  std::vector<std::byte> target(2'300'000, std::byte{42});
  auto untouched = target;
  tensor_view wrong_shape{{"large", dtype::u8, {100, 23'000}}, target.data(), {}};
  tensor_view wrong_type{{"large", dtype::i8, {target.size()}}, target.data(), {}};
  tensor_view unknown{{"larger", dtype::u8, {target.size()}}, target.data(), {}};
  for (auto& [view, code] :
       {std::pair{wrong_shape, errc::invalid_argument},
        {wrong_type, errc::invalid_argument},
        {unknown, errc::not_found}}) {
    auto r = checkpoints.restore_shard(0, {view}).result();
    BOOST_TEST((r.error().code() == code));
    BOOST_TEST((target == untouched));
  }
  tensor_view right{{"large", dtype::u8, {target.size()}}, target.data(), {}};
  BOOST_TEST(checkpoints.restore_shard(0, {right}).get().version == 1u);
  BOOST_TEST((target == m.large));
}

BOOST_AUTO_TEST_CASE(a_model_of_another_layout_is_refused_and_the_same_one_goes_on) {
  service s;
  model m;
  {
    auto first = s.direct->checkpointer(named("m"), m.views()).get();
    BOOST_TEST(saved(first, m, 5).ok());
    BOOST_TEST(first.close(true).ok());
  }
  auto views = m.views();
  views.pop_back();
  auto other = s.direct->checkpointer(named("m"), views).result();
  BOOST_TEST((other.error().code() == errc::invalid_argument));
  auto again = s.direct->checkpointer(named("m"), m.views()).get();
  BOOST_TEST(again.registration().resumed);
  BOOST_TEST((again.registration().model.complete_steps == std::vector<std::uint64_t>{5}));
  m.become(99);
  BOOST_TEST(again.restore().get().version == 5u);
  BOOST_TEST(m.is(5));
}

BOOST_AUTO_TEST_CASE(a_shard_has_one_job_at_a_time) {
  service s;
  model m, n;
  auto first = s.direct->checkpointer(named("m"), m.views()).get();
  auto soon = named("m");
  soon.timeout = 1s; // no registration is going to end
  auto second = s.direct->checkpointer(soon, n.views()).result();
  BOOST_TEST((second.error().code() == errc::busy));
  BOOST_TEST(saved(first, m, 1).ok());
}

BOOST_AUTO_TEST_CASE(any_rank_restores_any_shard_of_the_newest_complete_step) {
  constexpr std::uint32_t world = 4;
  service s;
  auto c = s.connect();
  std::vector<model> models(world);
  std::vector<checkpointer> ranks;
  for (std::uint32_t rank = 0; rank < world; ++rank)
    ranks.push_back(c.checkpointer(named("gpt", rank, world), models[rank].views()).get());
  auto save_all = [&](std::uint64_t step, std::uint32_t up_to) {
    std::vector<std::thread> threads;
    std::vector<status> outcomes(up_to);
    for (std::uint32_t rank = 0; rank < up_to; ++rank)
      threads.emplace_back([&, rank] {
        models[rank].become(100 * step + rank);
        auto durable = ranks[rank].save(step).durable.result();
        outcomes[rank] = durable ? status{} : durable.error();
      });
    for (auto& t : threads)
      t.join();
    for (auto& o : outcomes)
      BOOST_TEST(o.to_string() == status{}.to_string());
  };
  save_all(1, world);
  save_all(2, world);
  save_all(3, world - 1);
  BOOST_TEST((ranks[0].describe().get().complete_steps == std::vector<std::uint64_t>{2}));
  model target;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    BOOST_TEST(ranks[(rank + 1) % world].restore_shard(rank, target.views()).get().version == 2u);
    BOOST_TEST(target.is(200 + rank));
  }
  // A step that is not complete is there when it is named.
  BOOST_TEST(ranks[3].restore_shard(0, target.views(), 3).get().version == 3u);
  BOOST_TEST(target.is(300));
}

BOOST_AUTO_TEST_CASE(a_save_beside_another_waits_or_is_refused) {
  service s;
  model m, n;
  auto patient = s.direct->checkpointer(named("a"), m.views()).get();
  std::vector<pending_save> saves;
  for (std::uint64_t step = 1; step <= 4; ++step)
    saves.push_back(patient.save(step));
  for (auto& save : saves)
    BOOST_TEST(save.durable.get().step == save.step);
  auto options = named("b");
  options.busy = when_saving::refuse;
  auto strict = s.direct->checkpointer(options, n.views()).get();
  // Faster than a pull: the save in flight is met by one of the next.
  bool refused = false;
  for (std::uint64_t step = 1; step <= 1000 && !refused; ++step) {
    auto a = strict.save(step), b = strict.save(step + 1000);
    auto second = b.durable.result();
    refused = !second && second.error().code() == errc::busy;
    static_cast<void>(a.durable.result());
    if (refused)
      BOOST_TEST((strict.fence().code() == errc::busy));
    BOOST_TEST(strict.fence().ok());
  }
  BOOST_TEST(refused);
}

BOOST_AUTO_TEST_CASE(a_rank_that_is_ahead_waits_for_the_others_and_its_receipt_says_how_long) {
  service s;
  auto c = s.connect();
  model left, right;
  auto ahead = c.checkpointer(named("m", 0, 2), left.views()).get();
  auto behind = c.checkpointer(named("m", 1, 2), right.views()).get();
  for (std::uint64_t step = 1; step <= 2; ++step) {
    BOOST_TEST(saved(ahead, left, step).ok());
    if (step == 1)
      BOOST_TEST(saved(behind, right, step).ok());
  }
  left.become(3);
  auto third = ahead.save(3);
  BOOST_TEST(!third.staged.wait_for(100ms));
  BOOST_TEST(saved(behind, right, 2).ok());
  auto receipt = third.durable.get();
  BOOST_TEST(!receipt.complete);
  BOOST_TEST(receipt.times.slot_us >= 50'000u);
  // Both have seen `durable` for step 2.
  model target;
  BOOST_TEST(behind.restore_shard(0, target.views()).get().version == 2u);
  BOOST_TEST(target.is(2));
  BOOST_TEST(saved(behind, right, 3).ok());
  BOOST_TEST(behind.restore_shard(0, target.views()).get().version == 3u);
}

BOOST_AUTO_TEST_CASE(a_rank_waits_for_the_others_as_long_as_is_set_and_names_them) {
  service s;
  s.stop();
  s.settings.checkpoints.slot_wait_ms = 200;
  s.start();
  auto c = s.connect();
  model left, right;
  auto ahead = c.checkpointer(named("m", 0, 2), left.views()).get();
  auto behind = c.checkpointer(named("m", 1, 2), right.views()).get();
  BOOST_TEST(saved(ahead, left, 1).ok());
  BOOST_TEST(saved(behind, right, 1).ok());
  BOOST_TEST(saved(ahead, left, 2).ok());
  auto refused = saved(ahead, left, 3);
  BOOST_TEST((refused.code() == errc::busy), refused.to_string());
  for (auto part : {"checkpoints.slot_wait", "(step 2) waits for rank 1"})
    BOOST_TEST(refused.detail().find(part) != std::string::npos, refused.to_string());
  BOOST_TEST((ahead.fence().code() == errc::busy));
  // Nothing was overwritten, and both go on.
  BOOST_TEST(saved(behind, right, 2).ok());
  BOOST_TEST((ahead.describe().get().complete_steps.back() == 2u));
  BOOST_TEST(saved(behind, right, 4).ok());
  BOOST_TEST(saved(ahead, left, 4).ok());
  BOOST_TEST(ahead.restore().get().version == 4u);
}

BOOST_AUTO_TEST_CASE(a_restarted_service_is_found_again_and_what_failed_is_told_once) {
  service s;
  auto c = s.connect();
  model m;
  auto checkpoints = c.checkpointer(named("m"), m.views()).get();
  BOOST_TEST(saved(checkpoints, m, 1).ok());
  s.stop();
  m.become(2);
  auto lost = checkpoints.save(2);
  BOOST_TEST(!lost.durable.result().has_value());
  auto told = checkpoints.fence();
  BOOST_TEST((told.code() == errc::unavailable || told.code() == errc::peer_lost));
  BOOST_TEST(checkpoints.fence().ok());
  s.start();
  // Connections are tried again after a pause that grows.
  BOOST_TEST(testing::eventually([&] {
    auto again = saved(checkpoints, m, 3);
    static_cast<void>(checkpoints.fence());
    return again.ok();
  }));
  m.become(99);
  BOOST_TEST(checkpoints.restore().get().version == 3u);
  BOOST_TEST(m.is(3));
  BOOST_TEST(checkpoints.close().ok());
}

BOOST_AUTO_TEST_CASE(a_save_after_one_that_failed_is_not_begun_and_fails_with_it) {
  service s;
  auto c = s.connect();
  model m;
  auto checkpoints = c.checkpointer(named("m"), m.views()).get();
  s.stop();
  auto lost = checkpoints.save(1);
  BOOST_TEST(!lost.durable.result().has_value());
  s.start();
  auto not_begun = checkpoints.save(2);
  BOOST_TEST(not_begun.staged.ready());
  BOOST_TEST((not_begun.staged.result().error().code() == lost.durable.result().error().code()));
  BOOST_TEST(!checkpoints.fence().ok());
  BOOST_TEST(checkpoints.fence().ok());
}

BOOST_AUTO_TEST_CASE(closing_raises_a_save_that_failed) {
  service s;
  auto c = s.connect();
  model m;
  auto checkpoints = c.checkpointer(named("m"), m.views()).get();
  BOOST_TEST(saved(checkpoints, m, 1).ok());
  s.stop();
  static_cast<void>(checkpoints.save(2));
  auto told = checkpoints.close();
  BOOST_TEST((told.code() == errc::unavailable || told.code() == errc::peer_lost));
  BOOST_TEST(checkpoints.close().ok());
  BOOST_TEST(transport::exposed_regions() == 0u);
}

BOOST_AUTO_TEST_CASE(checkpoints_are_found_where_they_are_after_the_providers_have_changed) {
  service s;
  model m;
  {
    auto before = s.direct->checkpointer(named("m"), m.views()).get();
    BOOST_TEST(saved(before, m, 5).ok());
    BOOST_TEST(before.close().ok());
  }
  s.stop();
  auto second = s.settings.providers[0];
  second.name = "second";
  second.options.edit<storage::pmem_options>().pool.path = s.memory.path() + "/second.pool";
  second.weight = 1000;
  s.settings.providers.push_back(second);
  s.settings.nodes[0].providers = s.settings.providers;
  s.start();
  auto c = s.connect();
  BOOST_TEST_REQUIRE(runtime::place_checkpoints("m", "", c.providers()).value() == 1u);
  auto again = c.checkpointer(named("m"), m.views()).get();
  BOOST_TEST(again.registration().resumed);
  BOOST_TEST(again.registration().provider == "pool");
  m.become(99);
  BOOST_TEST(again.restore().get().version == 5u);
  BOOST_TEST(m.is(5));
  BOOST_TEST(saved(again, m, 6).ok());
  BOOST_TEST(again.close().ok());
  auto all = c.checkpoints();
  BOOST_TEST((all.describe("m").get().complete_steps == std::vector<std::uint64_t>{5, 6}));
  BOOST_TEST(all.describe_shard("m", 0).get().model == "m");
  BOOST_TEST(all.verify("m", 0, 6).get().corrupt.empty());
  BOOST_TEST(all.load("m", 0, {}, m.views()).get().version == 6u);
  BOOST_TEST(all.erase("m").result().has_value());
  BOOST_TEST((all.load("m", 0, {}, m.views()).result().error().code() == errc::not_found));
  // No pool has the model now, so it goes where it is placed.
  auto anew = c.checkpointer(named("m"), m.views()).get();
  BOOST_TEST(!anew.registration().resumed);
  BOOST_TEST(anew.registration().provider == "second");
}

// The client's file has a name that its node knows no more, and the name is placed there.
BOOST_AUTO_TEST_CASE(a_new_job_begins_where_the_nodes_say_after_a_pool_was_renamed) {
  service s;
  const auto before = s.settings;
  s.stop();
  s.settings.providers[0].name = "renamed";
  s.settings.nodes[0].providers = s.settings.providers;
  s.start();
  auto late = client::of(before).value();
  model m;
  auto job = late.checkpointer(named("m"), m.views()).get();
  BOOST_TEST(job.registration().provider == "renamed");
  BOOST_TEST(saved(job, m, 1).ok());
  BOOST_TEST(job.close().ok());
  BOOST_TEST(late.checkpoints().list().get().silent.empty());
  auto repacked = late.checkpoints().repack().get();
  BOOST_TEST_REQUIRE(repacked.size() == 1u);
  BOOST_TEST_REQUIRE(repacked[0].has_value());
  BOOST_TEST(repacked[0]->first == "renamed");
  BOOST_TEST(late.checkpoints().load("m", 0, {}, m.views()).get().version == 1u);
}

// A pool is taken out, another one is saved to, and it is put back.
BOOST_AUTO_TEST_CASE(the_newest_step_is_found_in_whichever_pool_it_was_saved) {
  service s;
  auto second = s.settings.providers[0];
  second.name = "second";
  second.options.edit<storage::pmem_options>().pool.path = s.memory.path() + "/second.pool";
  second.weight = 1000;
  const auto without = s.settings;
  auto with = without;
  with.providers.push_back(second);
  with.nodes[0].providers = with.providers;
  auto run_with = [&](const config::settings& settings) {
    s.stop();
    s.settings = settings;
    s.start();
  };
  model m;
  auto save_by = [&](client c, std::uint64_t step) {
    auto job = c.checkpointer(named("m"), m.views()).get();
    BOOST_TEST(saved(job, m, step).ok());
    BOOST_TEST(job.close().ok());
    return job.registration().provider;
  };
  run_with(with);
  BOOST_TEST(save_by(s.connect(), 1) == "second");
  // A client with the other file asks the node which pools there are.
  auto unaware = [&] { return client::of(without).value(); };
  BOOST_TEST(save_by(unaware(), 2) == "second");
  run_with(without);
  BOOST_TEST(save_by(s.connect(), 3) == "pool");
  run_with(with);
  for (auto& c : {s.connect(), unaware()}) {
    auto all = c.checkpoints();
    BOOST_TEST(all.list().get().found.size() == 2u);
    BOOST_TEST(all.load("m", 0, {}, m.views()).get().version == 3u);
    BOOST_TEST(m.is(3));
    // A step is found in the pool that has it.
    BOOST_TEST(all.load("m", 0, 2, m.views()).get().version == 2u);
    BOOST_TEST(m.is(2));
    BOOST_TEST(all.verify("m", 0, 2).get().corrupt.empty());
    BOOST_TEST(all.describe("m", 1).get().complete_steps.front() == 1u);
  }
  BOOST_TEST(save_by(s.connect(), 4) == "pool");
  auto all = s.connect().checkpoints();
  BOOST_TEST(all.erase("m", 2).result().has_value());
  BOOST_TEST(!all.load("m", 0, 2, m.views()).result());
  BOOST_TEST(all.erase("m").result().has_value());
  auto gone = all.load("m", 0, {}, m.views()).result();
  BOOST_TEST_REQUIRE(!gone.has_value());
  BOOST_TEST((gone.error().code() == errc::not_found), gone.error().to_string());
}

BOOST_AUTO_TEST_CASE(parallel_axes_and_metadata_are_kept_with_a_shard) {
  service s;
  auto c = s.connect();
  model m;
  auto options = named("m", 1, 2);
  options.axes = {{"tensor", "1/2"}, {"data", "0/1"}};
  options.metadata = {{"run", "42"}};
  auto checkpoints = c.checkpointer(options, m.views()).get();
  auto shard = c.checkpoints().describe_shard("m", 1).get();
  BOOST_TEST((shard.axes == options.axes));
  BOOST_TEST((shard.metadata == options.metadata));
  BOOST_TEST((checkpoints.describe().get().shards.at(0).axes == options.axes));
}

BOOST_AUTO_TEST_CASE(a_cancelled_save_leaves_the_tensors_alone_and_the_next_one_works) {
  service s;
  auto c = s.connect();
  model m;
  auto checkpoints = c.checkpointer(named("m"), m.views()).get();
  BOOST_TEST(saved(checkpoints, m, 1).ok());
  auto save = checkpoints.save(2);
  save.staged.cancel();
  save.durable.cancel();
  m.become(3);
  static_cast<void>(checkpoints.fence());
  BOOST_TEST(saved(checkpoints, m, 3).to_string() == status{}.to_string());
  m.become(99);
  BOOST_TEST(checkpoints.restore().get().version == 3u);
  BOOST_TEST(m.is(3));
}

// Wherever it is when it is cancelled: sent, read, or durable.
BOOST_AUTO_TEST_CASE(saves_beside_a_cancelled_one_are_whole) {
  service s;
  auto c = s.connect();
  model m;
  auto job = c.checkpointer(named("m"), m.views()).get();
  for (std::uint64_t step = 1; step < 90; step += 3) {
    m.become(step);
    std::vector<pending_save> saves{job.save(step), job.save(step + 1), job.save(step + 2)};
    std::this_thread::sleep_for(std::chrono::microseconds{20 * step});
    auto cancelled = saves.begin() + static_cast<std::ptrdiff_t>(step / 3 % 2);
    cancelled->staged.cancel();
    saves.erase(cancelled);
    for (auto& save : saves) {
      auto saved = save.durable.result();
      BOOST_TEST(saved.has_value(), step << ": " << (saved ? "" : saved.error().to_string()));
    }
    static_cast<void>(job.fence());
    m.become(99);
    BOOST_TEST(job.restore().get().version == step + 2);
    BOOST_TEST(m.is(step));
  }
}

BOOST_AUTO_TEST_CASE(the_last_copy_ends_the_registration) {
  service s;
  model m;
  {
    auto first = s.direct->checkpointer(named("m"), m.views()).get();
    auto copy = first;
    auto save = copy.save(1);
    static_cast<void>(save);
  }
  BOOST_TEST(transport::exposed_regions() == 0u);
  auto kept = s.direct->checkpoints().describe("m").get();
  BOOST_TEST(!kept.shards.at(0).registered);
  // Destroying it has drained.
  BOOST_TEST((kept.complete_steps == std::vector<std::uint64_t>{1}));
}

BOOST_AUTO_TEST_CASE(checkpoints_are_listed_verified_loaded_and_erased_from_outside) {
  service s;
  auto c = s.connect();
  model m;
  auto job = c.checkpointer(named("m"), m.views()).get();
  BOOST_TEST(saved(job, m, 1).ok());
  auto all = c.checkpoints();
  auto listed = all.list().get().found;
  BOOST_TEST_REQUIRE(listed.size() == 1u);
  BOOST_TEST(listed[0].model == "m");
  BOOST_TEST(all.describe_shard("m", 0).get().tensors.tensors.size() == 5u);
  BOOST_TEST((all.describe("x").result().error().code() == errc::not_found));
  auto verified = all.verify("m", 0, 1).get();
  BOOST_TEST(verified.corrupt.empty());
  model target;
  BOOST_TEST(all.load("m", 0, {}, target.views()).get().version == 1u);
  BOOST_TEST(target.is(1));
  BOOST_TEST((all.erase("m").result().error().code() == errc::busy));
  BOOST_TEST(job.close(true).ok());
  auto repacked = all.repack().get();
  BOOST_TEST_REQUIRE(repacked.size() == 1u);
  BOOST_TEST_REQUIRE(repacked[0].has_value());
  BOOST_TEST(repacked[0]->second.freed_bytes > 0u);
  BOOST_TEST(all.load("m", 0, 1, target.views()).get().version == 1u);
  BOOST_TEST(all.erase("m").result().has_value());
  BOOST_TEST(all.list().get().found.empty());
}

BOOST_AUTO_TEST_CASE(the_status_counts_registered_shards_and_saves) {
  service s;
  auto c = s.connect();
  model m;
  auto job = c.checkpointer(named("m"), m.views()).get();
  BOOST_TEST(saved(job, m, 1).ok());
  auto nodes = c.status().get();
  BOOST_TEST_REQUIRE(nodes.size() == 1u);
  auto& p = nodes[0]->providers.at(0);
  BOOST_TEST(p.name == "pool");
  BOOST_TEST(p.checkpoints.kept);
  BOOST_TEST(p.checkpoints.registered == 1u);
  BOOST_TEST(p.checkpoints.saves == 1u);
  BOOST_TEST(p.checkpoints.saves_in_flight == 0u);
}

BOOST_AUTO_TEST_CASE(without_a_pool_the_error_says_how_to_configure_one) {
  scratch_directory dir;
  config::settings settings;
  settings.node.listen = {"unix:" + dir.path() + "/n0.sock"};
  settings.providers.emplace_back().name = "fast";
  settings.providers[0].options.edit<storage::memory_bucket_options>().capacity_bytes = 1 << 20;
  settings.nodes = {{settings.node.name, settings.node.listen, settings.providers}};
  auto n = node::embed(settings);
  model m;
  auto refused = n.client().checkpointer(named("m"), m.views()).result();
  BOOST_TEST((refused.error().code() == errc::not_found));
  BOOST_TEST(refused.error().detail().find("bucket: pmem") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
