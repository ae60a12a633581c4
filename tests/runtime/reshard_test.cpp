// Tests loads from all shards of a step: jobs of other world sizes and other layouts find the bytes
// that a single rank has.
#include "one_pool.hpp"

#include <millrace/core/box.hpp>
#include <millrace/tests/support/dice.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <optional>

using namespace millrace;
using namespace std::chrono_literals;
namespace data = boost::unit_test::data;

namespace {

struct reshard_service : testing::one_pool {
  std::optional<client> c{connect()};
};

// The whole model, as a single rank has it.
const std::vector<tensor_desc>& whole_tensors() {
  static const std::vector<tensor_desc> all{
    {"embed", dtype::f32, {64, 96}},
    {"layer0", dtype::bf16, {32, 48, 8}},
    {"layer1", dtype::f32, {400, 320}},
    {"scale", dtype::f64, {}}};
  return all;
}

using tensor_bytes = std::map<std::string, std::vector<std::byte>>;

tensor_bytes reference() {
  tensor_bytes out;
  testing::dice dice{5};
  for (auto& t : whole_tensors()) {
    auto& bytes = out[t.name];
    bytes.resize(size_bytes(t).value());
    for (auto& b : bytes)
      b = static_cast<std::byte>(dice.next());
  }
  return out;
}

enum class layout_kind { tensor, pipeline, data, mixed };

std::ostream& operator<<(std::ostream& out, layout_kind kind) {
  return out << static_cast<int>(kind);
}

// The box of one tensor that a rank has; nothing if it has none.
std::optional<tensor_box> box_of(
  layout_kind kind, std::size_t number, std::uint32_t rank, std::uint32_t world) {
  auto& shape = whole_tensors()[number].shape;
  tensor_box box{std::vector<std::uint64_t>(shape.size()), shape};
  auto split = [&](std::uint32_t part, std::uint32_t parts) {
    if (shape.empty())
      return;
    auto dimension = number % shape.size(); // each tensor along another one
    box.extents[dimension] = shape[dimension] / parts;
    box.offsets[dimension] = part * box.extents[dimension];
  };
  switch (kind) {
  case layout_kind::tensor:
    split(rank, world);
    break;
  case layout_kind::pipeline:
    if (number % world != rank)
      return {};
    break;
  case layout_kind::data:
    break;
  case layout_kind::mixed:
    // Two stages, and in each the tensors split by half of the ranks.
    if (number % 2 != rank % 2)
      return {};
    split(rank / 2, world / 2);
    break;
  }
  return box;
}

struct rank_state {
  std::vector<std::vector<std::byte>> memory;
  std::vector<tensor_view> views;
  std::vector<load_target> targets;
  std::vector<tensor_place> places;

  rank_state(layout_kind kind, std::uint32_t rank, std::uint32_t world) {
    for (std::size_t i = 0; i < whole_tensors().size(); ++i) {
      auto& whole = whole_tensors()[i];
      auto box = box_of(kind, i, rank, world);
      if (!box)
        continue;
      tensor_desc desc{whole.name, whole.type, box->extents};
      auto& bytes = memory.emplace_back(size_bytes(desc).value());
      views.push_back({desc, bytes.data(), {}});
      targets.push_back({views.back(), {}, box->offsets});
      if (box->extents != whole.shape)
        places.push_back({whole.name, whole.shape, box->offsets});
    }
    // A rank of a pipeline that is longer than the model has something, too.
    if (views.empty()) {
      auto& bytes = memory.emplace_back(8);
      views.push_back({{"spare" + std::to_string(rank), dtype::u8, {8}}, bytes.data(), {}});
    }
  }

  // Each byte is that of the single rank.
  bool is(const tensor_bytes& expected) const {
    for (std::size_t i = 0; i < targets.size(); ++i) {
      auto& t = targets[i];
      for (auto& whole : whole_tensors()) {
        if (whole.name != t.into.desc.name)
          continue;
        auto& bytes = expected.at(whole.name);
        auto runs = runs_of(whole, {t.offsets, t.into.desc.shape}).value();
        for (std::uint64_t run = 0; run < runs.count(); ++run)
          if (
            std::memcmp(
              memory[i].data() + run * runs.run_bytes(),
              bytes.data() + runs.first_byte() + runs.offset(run), runs.run_bytes()) != 0)
            return false;
      }
    }
    return true;
  }
};

checkpoint_options options_of(
  const std::string& model, std::uint32_t rank, std::uint32_t world,
  std::vector<tensor_place> places) {
  checkpoint_options o;
  o.model = model;
  o.rank = rank;
  o.world_size = world;
  o.timeout = 30s;
  o.life = 77;
  o.places = std::move(places);
  return o;
}

struct registered_job {
  std::vector<rank_state> ranks;
  std::vector<checkpointer> savers;

  void save(std::uint64_t step) {
    for (auto& saver : savers)
      BOOST_TEST(saver.save(step).durable.result().has_value());
  }
};

void register_all(
  registered_job& job, client& c, const std::string& model, layout_kind kind, std::uint32_t world) {
  job.ranks.reserve(world);
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    auto& state = job.ranks.emplace_back(kind, rank, world);
    job.savers.push_back(
      c.checkpointer(options_of(model, rank, world, state.places), state.views).get());
  }
}

// Loads each rank's part of `from`, and saves it as `to`.
void reshard(
  client& c, const std::string& from, const std::string& to, layout_kind kind, std::uint32_t world,
  const tensor_bytes& expected) {
  registered_job job;
  register_all(job, c, to, kind, world);
  for (auto& state : job.ranks) {
    if (state.targets.empty())
      continue;
    auto r = c.checkpoints().load_global(from, state.targets).get();
    BOOST_TEST(r.step == 3u);
    BOOST_TEST(r.model == from);
    BOOST_TEST(r.verified);
    BOOST_TEST(!r.ranks.empty());
    BOOST_TEST(state.is(expected));
  }
  job.save(3);
}

} // namespace

BOOST_AUTO_TEST_SUITE(reshard_tests)

BOOST_DATA_TEST_CASE(
  four_ranks_become_two_and_eight_with_the_bytes_of_one,
  data::make({layout_kind::tensor, layout_kind::pipeline, layout_kind::data, layout_kind::mixed}) *
    data::make({layout_kind::tensor, layout_kind::mixed}),
  first, last) {
  reshard_service s;
  auto expected = reference();
  {
    registered_job one;
    register_all(one, *s.c, "one", layout_kind::data, 1);
    for (std::size_t i = 0; i < whole_tensors().size(); ++i)
      std::ranges::copy(expected.at(whole_tensors()[i].name), one.ranks[0].memory[i].begin());
    one.save(3);
  }
  reshard(*s.c, "one", "four", first, 4, expected);
  reshard(*s.c, "four", "two", last, 2, expected);
  reshard(*s.c, "two", "eight", first, 8, expected);
  reshard(*s.c, "eight", "again", layout_kind::data, 1, expected);
}

BOOST_AUTO_TEST_CASE(replicas_are_read_once) {
  reshard_service s;
  registered_job job;
  register_all(job, *s.c, "m", layout_kind::data, 4);
  job.save(1);
  rank_state target{layout_kind::data, 0, 1};
  auto r = s.c->checkpoints().load_global("m", target.targets).get();
  BOOST_TEST((r.ranks == std::vector<std::uint32_t>{0}));
  std::uint64_t bytes = 0;
  for (auto& view : target.views)
    bytes += size_bytes(view.desc).value();
  BOOST_TEST(r.size_bytes == bytes);
}

BOOST_AUTO_TEST_CASE(the_bytes_of_the_user_are_not_read_with_the_parts) {
  reshard_service s;
  registered_job job;
  register_all(job, *s.c, "m", layout_kind::data, 1);
  std::vector<std::byte> extra(100'000, std::byte{3});
  BOOST_TEST(job.savers[0].save(1, save_mode::direct, extra).durable.result().has_value());
  rank_state target{layout_kind::data, 0, 1};
  auto r = s.c->checkpoints().load_global("m", target.targets).get();
  auto nodes = s.c->status().get();
  BOOST_TEST_REQUIRE(nodes.at(0).has_value());
  BOOST_TEST(nodes.at(0)->providers.at(0).checkpoints.restored_bytes == r.size_bytes);
}

BOOST_AUTO_TEST_CASE(elements_that_no_shard_has_are_named) {
  reshard_service s;
  std::vector<std::byte> half(4 * 8 * 4), whole(8 * 8 * 4);
  std::vector<tensor_view> views{{{"w", dtype::f32, {4, 8}}, half.data(), {}}};
  auto saver = s.c->checkpointer(options_of("m", 0, 1, {{"w", {8, 8}, {4, 0}}}), views).get();
  BOOST_TEST(saver.save(5).durable.result().has_value());
  auto all = s.c->checkpoints();
  load_target target{{{"w", dtype::f32, {8, 8}}, whole.data(), {}}};
  auto hole = all.load_global("m", {target}).result();
  BOOST_TEST_REQUIRE(!hole.has_value());
  BOOST_TEST((hole.error().code() == errc::not_found));
  BOOST_TEST(
    hole.error().detail().find("tensor w: [0:4, 0:8] is in no shard of step 5") !=
    std::string::npos);
  target.into.desc.name = "v";
  BOOST_TEST((all.load_global("m", {target}).result().error().code() == errc::not_found));
  target.into.desc = {"w", dtype::f32, {1, 8}};
  target.offsets = {std::numeric_limits<std::uint64_t>::max(), 0};
  BOOST_TEST((all.load_global("m", {target}).result().error().code() == errc::invalid_argument));
  target.offsets = {7, 0};
  BOOST_TEST(all.load_global("m", {target}, {.step = 5}).result().has_value());
  auto other = all.load_global("m", {target}, {.step = 4}).result();
  BOOST_TEST((other.error().code() == errc::not_found));
}

BOOST_AUTO_TEST_CASE(shards_that_differ_in_the_global_shape_are_named) {
  reshard_service s;
  std::vector<std::byte> a(4 * 4), b(4 * 4), into(8 * 4);
  auto first =
    s.c
      ->checkpointer(
        options_of("m", 0, 2, {{"w", {8}, {0}}}), {{{"w", dtype::f32, {4}}, a.data(), {}}})
      .get();
  auto second =
    s.c
      ->checkpointer(
        options_of("m", 1, 2, {{"w", {9}, {4}}}), {{{"w", dtype::f32, {4}}, b.data(), {}}})
      .get();
  BOOST_TEST(first.save(1).durable.result().has_value());
  BOOST_TEST(second.save(1).durable.result().has_value());
  load_target target{{{"w", dtype::f32, {8}}, into.data(), {}}};
  auto r = s.c->checkpoints().load_global("m", {target}).result();
  BOOST_TEST_REQUIRE(!r.has_value());
  BOOST_TEST((r.error().code() == errc::invalid_argument));
  BOOST_TEST(r.error().detail().find("tensor w") != std::string::npos);
  BOOST_TEST(r.error().detail().find("rank 1") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(places_outside_of_the_whole_tensor_are_refused_and_stored_ones_stay) {
  reshard_service s;
  std::vector<std::byte> bytes(4 * 4);
  std::vector<tensor_view> views{{{"w", dtype::f32, {4}}, bytes.data(), {}}};
  constexpr auto huge = std::numeric_limits<std::uint64_t>::max();
  for (auto& places : std::vector<std::vector<tensor_place>>{
         {{"w", {8}, {5}}},
         {{"w", {3}, {0}}},
         {{"w", {8}, {huge}}},
         {{"w", {huge}, {0}}},
         {{"w", {8, 8}, {0, 0}}},
         {{"w", {8}, {}}},
         {{"w", {8}, {0}}, {"w", {8}, {0}}},
         {{"v", {8}, {0}}}}) {
    auto r = s.c->checkpointer(options_of("m", 0, 1, places), views).result();
    BOOST_TEST_REQUIRE(!r.has_value());
    BOOST_TEST((r.error().code() == errc::invalid_argument));
    BOOST_TEST(r.error().detail().find("tensor " + places[0].name) != std::string::npos);
  }
  std::vector<tensor_place> right{{"w", {8}, {4}}};
  for (auto& places : {right, std::vector<tensor_place>{}, right}) {
    auto saver = s.c->checkpointer(options_of("m", 0, 1, places), views).get();
    BOOST_TEST((s.c->checkpoints().describe_shard("m", 0).get().places == right));
    BOOST_TEST(saver.close().ok());
  }
  auto moved = s.c->checkpointer(options_of("m", 0, 1, {{"w", {8}, {0}}}), views).result();
  BOOST_TEST_REQUIRE(!moved.has_value());
  BOOST_TEST((moved.error().code() == errc::invalid_argument));
}

BOOST_AUTO_TEST_CASE(boxes_of_one_shard_load_by_themselves) {
  reshard_service s;
  registered_job job;
  register_all(job, *s.c, "m", layout_kind::data, 1);
  for (std::size_t i = 0; i < job.ranks[0].memory.size(); ++i)
    for (std::size_t b = 0; b < job.ranks[0].memory[i].size(); ++b)
      job.ranks[0].memory[i][b] = static_cast<std::byte>(b * 7 + i);
  job.save(1);
  auto& stored = job.ranks[0].memory[2];
  std::vector<std::byte> into(100 * 20 * 4), expected(into.size());
  for (std::size_t r = 0; r < 100; ++r)
    std::memcpy(expected.data() + r * 80, stored.data() + ((r + 50) * 320 + 30) * 4, 80);
  load_target target{{{"layer1", dtype::f32, {100, 20}}, into.data(), {}}, {}, {50, 30}};
  BOOST_TEST(s.c->checkpoints().load_boxes("m", 0, {}, {target}).get().version == 1u);
  BOOST_TEST((into == expected));
  std::fill(into.begin(), into.end(), std::byte{0});
  BOOST_TEST(job.savers[0].restore_boxes(0, {target}).get().verified);
  BOOST_TEST((into == expected));
}

BOOST_AUTO_TEST_SUITE_END()
