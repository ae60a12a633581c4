// Tests loads of boxes end to end, from every kind of bucket, and by older providers.
#include <millrace/runtime/client/calls/selected.hpp>
#include <millrace/runtime/node/node.hpp>
#include <millrace/storage/memory/memory_options.hpp>
#include <millrace/storage/rocksdb/rocksdb_options.hpp>
#include <millrace/tests/support/dice.hpp>
#include <millrace/tests/support/scratch_directory.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <cstring>
#include <limits>
#include <optional>

using namespace millrace;
namespace data = boost::unit_test::data;

namespace {

using testing::scratch_directory;

constexpr auto huge = std::numeric_limits<std::uint64_t>::max();

struct box_service {
  scratch_directory dir;
  config::settings settings;
  std::optional<node> n;
  std::optional<client> direct, remote;

  explicit box_service(std::uint64_t box_runs_max = 4'194'304) {
    settings.node.name = "n0";
    settings.node.listen = {"unix:" + dir.path() + "/n0.sock"};
    settings.staging.size_bytes = 32 << 20;
    settings.limits.box_runs_max = box_runs_max;
    config::provider_settings fast, kept;
    fast.name = "fast";
    fast.options.edit<storage::memory_bucket_options>().capacity_bytes = 64 << 20;
    kept.name = kept.group = "kept";
    kept.bucket = "rocksdb";
    auto& on_disk = kept.options.edit<storage::rocksdb_bucket_options>();
    on_disk.capacity_bytes = 256 << 20;
    on_disk.path = dir.path() + "/kept";
    on_disk.window_bytes = 1 << 20;
    settings.providers = {fast, kept};
    settings.nodes = {{settings.node.name, settings.node.listen, settings.providers}};
    n.emplace(node::embed(settings));
    direct.emplace(n->client());
    remote.emplace(client::connect(n->address()));
  }

  repository repo(bool over_socket, const std::string& group) {
    return (over_socket ? *remote : *direct).repository(group);
  }
};

std::vector<std::byte> random_bytes_of(testing::dice& dice, std::uint64_t count) {
  std::vector<std::byte> out(count);
  for (auto& b : out)
    b = static_cast<std::byte>(dice.next());
  return out;
}

// The box of a dense tensor, element by element.
std::vector<std::byte> reference(
  const tensor_desc& tensor, const std::vector<std::byte>& bytes,
  const std::vector<std::uint64_t>& offsets, const std::vector<std::uint64_t>& extents) {
  std::uint64_t count = 1, size = bits_per_element(tensor.type) / 8;
  for (auto extent : extents)
    count *= extent;
  std::vector<std::byte> out(count * size);
  for (std::uint64_t n = 0; n < count; ++n) {
    std::uint64_t at = 0, stride = 1, rest = n;
    for (auto i = tensor.shape.size(); i-- > 0; stride *= tensor.shape[i]) {
      at += (offsets[i] + rest % extents[i]) * stride;
      rest /= extents[i];
    }
    std::memcpy(out.data() + n * size, bytes.data() + at * size, size);
  }
  return out;
}

errc code_of(const result<load_receipt>& r) { return r ? errc::ok : r.error().code(); }

} // namespace

BOOST_AUTO_TEST_SUITE(box_load_tests)

BOOST_DATA_TEST_CASE(
  a_box_of_any_rank_loads_as_a_copy_by_hand_does,
  data::make({false, true}) * data::make({"default", "kept"}), over_socket, group) {
  box_service s;
  auto repo = s.repo(over_socket, group);
  // Some have many digest blocks, and gaps larger than a block.
  std::vector<std::vector<std::uint64_t>> shapes{
    {}, {700'000}, {700, 900}, {3, 300'000}, {12, 50, 700}, {2, 3, 20, 9'000}, {5, 7, 11, 13}};
  testing::dice dice{over_socket + 2u};
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    tensor_desc desc{"t", dtype::f32, shapes[i]};
    auto stored = random_bytes_of(dice, size_bytes(desc).value());
    auto name = "m" + std::to_string(i);
    repo.store(name, {{desc, stored.data(), {}}}).get();
    for (int round = 0; round < 3; ++round) {
      std::vector<load_target> targets;
      std::vector<std::vector<std::byte>> into(3), expected(3);
      for (std::size_t k = 0; k < into.size(); ++k) {
        std::vector<std::uint64_t> offsets, extents;
        for (auto size : desc.shape) {
          offsets.push_back(dice.percent(30) ? 0 : dice.below(size));
          auto most = size - offsets.back();
          extents.push_back(dice.percent(30) ? most : dice.between(1, most));
        }
        expected[k] = reference(desc, stored, offsets, extents);
        into[k].resize(expected[k].size());
        targets.push_back({{{"t", dtype::f32, extents}, into[k].data(), {}}, {}, offsets});
      }
      auto r = repo.load(name, targets).get();
      BOOST_TEST(r.verified);
      for (std::size_t k = 0; k < into.size(); ++k)
        BOOST_TEST((into[k] == expected[k]));
    }
  }
}

BOOST_DATA_TEST_CASE(
  a_box_loads_into_strided_memory, data::make({false, true}) * data::make({"default", "kept"}),
  over_socket, group) {
  box_service s;
  auto repo = s.repo(over_socket, group);
  testing::dice dice{7};
  tensor_desc desc{"t", dtype::f32, {600, 800}};
  auto stored = random_bytes_of(dice, size_bytes(desc).value());
  repo.store("m", {{desc, stored.data(), {}}}).get();
  // The transposed box of 300 rows and 500 columns.
  std::vector<float> memory(300 * 500);
  tensor_view transposed{
    {"t", dtype::f32, {300, 500}}, reinterpret_cast<std::byte*>(memory.data()), {4, 300 * 4}};
  repo.load("m", {{transposed, {}, {100, 200}}}).get();
  auto expected = reference(desc, stored, {100, 200}, {300, 500});
  for (std::size_t i = 0; i < 300; ++i)
    for (std::size_t j = 0; j < 500; ++j)
      BOOST_REQUIRE(std::memcmp(&memory[j * 300 + i], expected.data() + (i * 500 + j) * 4, 4) == 0);
}

BOOST_AUTO_TEST_CASE(one_column_of_many_rows_loads_in_several_transfers) {
  box_service s;
  testing::dice dice{8};
  tensor_desc desc{"t", dtype::f32, {100'000, 20}};
  auto stored = random_bytes_of(dice, size_bytes(desc).value());
  for (auto* group : {"default", "kept"}) {
    auto repo = s.repo(true, group);
    repo.store("m", {{desc, stored.data(), {}}}).get();
    std::vector<std::byte> column(100'000 * 4);
    tensor_view into{{"t", dtype::f32, {100'000, 1}}, column.data(), {}};
    BOOST_TEST(repo.load("m", {{into, {}, {0, 13}}}).get().size_bytes == column.size());
    BOOST_TEST((column == reference(desc, stored, {0, 13}, {100'000, 1})));
  }
}

BOOST_DATA_TEST_CASE(
  a_box_outside_of_the_tensor_is_an_error_before_any_byte_moves, data::make({false, true}),
  over_socket) {
  box_service s;
  auto repo = s.repo(over_socket, "default");
  std::vector<std::byte> stored(40 * 60, std::byte{1}), target(40 * 60, std::byte{42});
  auto untouched = target;
  repo.store("m", {{{"t", dtype::u8, {40, 60}}, stored.data(), {}}}).get();
  using numbers = std::vector<std::uint64_t>;
  for (auto& [offsets, extents] : std::vector<std::pair<numbers, numbers>>{
         {{1, 0}, {40, 60}},
         {{0, 1}, {40, 60}},
         {{0, 59}, {1, 2}},
         {{huge, 0}, {1, 60}},
         {{0, huge}, {40, 1}},
         {{huge, huge}, {2, 2}},
         {{0}, {40, 60}},
         {{0, 0, 0}, {40, 60}},
         {{0, 0, 0}, {40, 60, 1}},
         {{0}, {40}}}) {
    tensor_view into{{"t", dtype::u8, extents}, target.data(), {}};
    BOOST_TEST((code_of(repo.load("m", {{into, {}, offsets}}).result()) == errc::invalid_argument));
  }
  tensor_view whole{{"t", dtype::u8, {40, 60}}, target.data(), {}};
  BOOST_TEST((code_of(repo.load("m", {{whole, 0, {0, 0}}}).result()) == errc::invalid_argument));
  tensor_view other{{"t", dtype::i8, {40, 60}}, target.data(), {}};
  BOOST_TEST((code_of(repo.load("m", {{other, {}, {0, 0}}}).result()) == errc::invalid_argument));
  BOOST_TEST((target == untouched));
  tensor_view none{{"t", dtype::u8, {0, 60}}, target.data(), {}};
  BOOST_TEST(repo.load("m", {{none, {}, {40, 0}}}).get().size_bytes == 0u);
}

BOOST_AUTO_TEST_CASE(boxes_of_too_many_runs_are_refused_together) {
  box_service s{100};
  auto repo = s.repo(true, "default");
  std::vector<std::byte> stored(80 * 4), one(80), two(80);
  repo.store("m", {{{"t", dtype::u8, {80, 4}}, stored.data(), {}}}).get();
  load_target first{{{"t", dtype::u8, {80, 1}}, one.data(), {}}, {}, {0, 1}};
  load_target second{{{"t", dtype::u8, {80, 1}}, two.data(), {}}, {}, {0, 2}};
  BOOST_TEST(repo.load("m", {first}).result().has_value());
  auto both = repo.load("m", {first, second}).result();
  BOOST_TEST_REQUIRE(!both.has_value());
  BOOST_TEST((both.error().code() == errc::invalid_argument));
  BOOST_TEST(both.error().detail().find("limits.box_runs_max") != std::string::npos);
}

// An older provider reads `rows` and `first_row` alone.
BOOST_AUTO_TEST_CASE(a_provider_that_does_not_know_boxes_gets_the_same_rows_or_refuses) {
  tensor_desc desc{"t", dtype::f32, {2, 3}};
  auto rows = runtime::selected(desc, {{desc, nullptr, {}}, {}, {5, 0}});
  BOOST_TEST((rows.rows && rows.first_row == 5));
  auto box = runtime::selected(desc, {{desc, nullptr, {}}, {}, {5, 1}});
  BOOST_TEST((box.rows && box.first_row == actors::selection::no_row));
  auto whole = runtime::selected(desc, {{desc, nullptr, {}}, {}, {}});
  BOOST_TEST((!whole.rows && whole.offsets.empty()));
}

BOOST_AUTO_TEST_SUITE_END()
