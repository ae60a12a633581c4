// Tests what the bucket contract does not ask of a pool: what a restart keeps, and that models and
// checkpoints share one pool without touching each other.
#include <millrace/core/digest.hpp>
#include <millrace/core/model_graph.hpp>
#include <millrace/storage/pmem/pool.hpp>
#include <millrace/tests/support/bucket_driving.hpp>
#include <millrace/tests/support/checkpoint_driving.hpp>
#include <millrace/tests/support/dice.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/pool_place.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <fcntl.h>
#include <unistd.h>

using namespace millrace;
using namespace millrace::storage;
using namespace millrace::testing;
namespace data = boost::unit_test::data;

namespace {

constexpr std::uint64_t mib = 1u << 20;
const auto ways = data::make({pool_way::memory, pool_way::mapped_file, pool_way::direct_file});

struct world {
  explicit world(
    pool_way way, std::uint64_t size_bytes = 64 * mib, when_full full = when_full::refuse)
    : place(way), options(place.options(size_bytes)) {
    options.populate = false;
    options.models_full = full;
    open();
  }

  void open() {
    auto opened = open_pool(options);
    BOOST_REQUIRE_MESSAGE(opened, why(opened));
    owner = *opened;
    models = owner->models();
    checkpoints = owner->checkpoints();
  }
  void close() {
    BOOST_TEST(models->close(10'000).ok());
    BOOST_TEST(checkpoints->close(10'000).ok());
    models.reset();
    checkpoints.reset();
    owner.reset();
  }
  check_report checked() {
    close();
    auto report = check_pool(place.path(), true);
    BOOST_REQUIRE_MESSAGE(report, why(report));
    open();
    return *report;
  }
  /// Nothing is wrong, and nothing is lost.
  void check_whole() {
    auto report = checked();
    for (auto& problem : report.problems)
      BOOST_ERROR(problem);
    BOOST_TEST(report.unreachable_bytes == 0u);
  }
  void store_or_fail(const std::string& name, std::uint64_t size_bytes, std::uint64_t seed) const {
    auto version = store(*models, spec_of(name, {size_bytes, 300}), seed);
    BOOST_REQUIRE_MESSAGE(version, why(version));
  }
  void pin(const std::string& name, bool pinned) const {
    BOOST_REQUIRE(await<void>([&](auto done) { models->pin(name, pinned, std::move(done)); }));
  }
  bool holds(const std::string& name, std::uint64_t seed) const {
    auto outcome = check_model(*models, name, seed);
    BOOST_TEST_MESSAGE(name << ": " << outcome.to_string());
    return outcome.ok();
  }

  pool_place place;
  pool_options options;
  std::shared_ptr<pool> owner;
  std::shared_ptr<bucket> models;
  std::shared_ptr<checkpoint_store> checkpoints;
};

layer_id id_of(std::uint8_t n) {
  layer_id id;
  id.bytes.fill(n);
  return id;
}

described_layer described(std::uint8_t n) { return {id_of(n), {std::byte{n}, std::byte{1}}}; }

model_spec spec_with_layers(const std::string& name, std::uint8_t first, std::uint8_t second) {
  auto spec = spec_of(name, {100, 200});
  compact_graph graph;
  graph.ids = {id_of(first), id_of(second)};
  graph.inputs.resize(2);
  spec.graph = encode_graph(graph);
  spec.tensor_layers = {0, 1};
  return spec;
}

result<std::vector<described_layer>> resolve(bucket& at, std::vector<layer_id> ids) {
  return await<std::vector<described_layer>>(
    [&](auto done) { at.resolve(std::move(ids), std::move(done)); });
}

} // namespace

BOOST_AUTO_TEST_SUITE(pmem_bucket)

BOOST_DATA_TEST_CASE(models_survive_a_restart_with_their_pins_and_layers, ways, way) {
  world w{way};
  w.store_or_fail("a", 3 * mib + 17, 1);
  w.store_or_fail("a", 5 * mib, 2);
  w.store_or_fail("pinned", 1000, 3);
  w.pin("pinned", true);
  BOOST_REQUIRE(store(*w.models, spec_with_layers("net", 1, 2), 4, {described(1), described(2)}));
  BOOST_REQUIRE(store(*w.models, spec_with_layers("tuned", 2, 3), 5, {described(3)}));
  BOOST_REQUIRE(erase(*w.models, "net").ok());
  auto before = w.models->stats();
  auto record = (*open(*w.models, "a"))->record();
  w.check_whole();
  BOOST_TEST(w.holds("a", 2));
  BOOST_TEST(((*open(*w.models, "a"))->record() == record));
  BOOST_TEST((*open(*w.models, "pinned"))->record().spec.pinned);
  BOOST_TEST(w.models->stats().models == 3u);
  BOOST_TEST(w.models->stats().used_bytes == before.used_bytes);
  auto layers = resolve(*w.models, {id_of(2), id_of(3)});
  BOOST_REQUIRE(layers);
  BOOST_TEST((*layers == std::vector{described(2), described(3)}));
  BOOST_TEST(!resolve(*w.models, {id_of(1)}));
}

BOOST_DATA_TEST_CASE(a_version_is_not_used_twice_even_when_its_model_is_gone, ways, way) {
  world w{way};
  auto first = store(*w.models, spec_of("a", {100}), 1);
  BOOST_REQUIRE(first);
  BOOST_REQUIRE(erase(*w.models, "a").ok());
  w.close();
  w.open();
  auto second = store(*w.models, spec_of("a", {100}), 1);
  BOOST_REQUIRE(second);
  BOOST_TEST(*second > *first);
}

BOOST_DATA_TEST_CASE(models_and_checkpoints_of_one_name_are_apart, ways, way) {
  world w{way};
  auto shard = shard_of("m", {2 * mib, 100});
  BOOST_REQUIRE(enroll(*w.checkpoints, shard));
  BOOST_REQUIRE(save(*w.checkpoints, shard, 7));
  w.store_or_fail("m", mib, 1);
  w.checkpoints->leave("m", 0, true);
  w.close();
  w.open();
  BOOST_TEST(check_version(*w.checkpoints, shard, 7).ok());
  BOOST_TEST(w.holds("m", 1));
  auto info = w.owner->info();
  BOOST_TEST(info.models == 1u);
  BOOST_TEST(info.repository_models == 1u);
  BOOST_REQUIRE(erase(*w.models, "m").ok());
  BOOST_TEST(check_version(*w.checkpoints, shard, 7).ok());
  w.store_or_fail("m", mib, 2);
  BOOST_REQUIRE(erase(*w.checkpoints, "m").ok());
  BOOST_TEST(list_all(*w.checkpoints).empty());
  BOOST_TEST(w.holds("m", 2));
  w.check_whole();
}

BOOST_DATA_TEST_CASE(a_full_pool_evicts_models_and_never_checkpoints, ways, way) {
  world w{way, 48 * mib, when_full::evict};
  auto shard = shard_of("job", {6 * mib});
  BOOST_REQUIRE(enroll(*w.checkpoints, shard));
  BOOST_REQUIRE(save(*w.checkpoints, shard, 1));
  w.checkpoints->leave("job", 0, false);
  for (std::uint64_t i = 0; i < 12; ++i)
    w.store_or_fail("m" + std::to_string(i), 6 * mib, i);
  BOOST_TEST(w.models->stats().evictions > 0u);
  BOOST_TEST(w.holds("m11", 11));
  BOOST_TEST(check_version(*w.checkpoints, shard, 1).ok());
  auto kept = w.models->stats().models;
  auto refused = reserve(*w.models, spec_of("large", {40 * mib}));
  BOOST_REQUIRE(!refused);
  BOOST_TEST((refused.error().code() == errc::no_space));
  BOOST_TEST(w.models->stats().models == kept);
  w.check_whole();
}

BOOST_DATA_TEST_CASE(repack_moves_models_but_none_that_is_read, ways, way) {
  world w{way};
  for (std::uint64_t i = 0; i < 6; ++i)
    w.store_or_fail("m" + std::to_string(i), 5 * mib, i);
  for (auto i : {0, 2, 3})
    BOOST_REQUIRE(erase(*w.models, "m" + std::to_string(i)).ok());
  auto reader = open(*w.models, "m4");
  BOOST_REQUIRE(reader);
  auto held = fetch(**reader, {{0, 0, digest_block_bytes}});
  BOOST_REQUIRE(held);
  auto report = repack(*w.checkpoints);
  BOOST_REQUIRE_MESSAGE(report, why(report));
  BOOST_TEST(report->moved_bytes > 0u);
  auto& p = held->pieces.at(0);
  BOOST_TEST(is_filled(p.data, p.length, 4, 0, 0));
  BOOST_TEST(check_ranges(**reader, everything((*reader)->record().spec.tensors), 4).ok());
  held = fail(errc::ok, "");
  reader = fail(errc::ok, "");
  w.check_whole();
  for (std::uint64_t i : {1, 4, 5})
    BOOST_TEST(w.holds("m" + std::to_string(i), i));
}

BOOST_DATA_TEST_CASE(a_model_without_checksums_is_stored_moved_and_checked, ways, way) {
  world w{way};
  w.store_or_fail("gap", 6 * mib, 1);
  auto spec = spec_of("bare", {5 * mib, 70});
  auto room = reserve(*w.models, spec);
  BOOST_REQUIRE(room);
  BOOST_REQUIRE(fill_windows(**room, 2).ok());
  BOOST_REQUIRE(await<std::uint64_t>([&](auto done) { (*room)->publish({}, std::move(done)); }));
  room->reset();
  BOOST_REQUIRE(erase(*w.models, "gap").ok());
  BOOST_REQUIRE(repack(*w.checkpoints));
  w.check_whole();
  auto back = open(*w.models, "bare");
  BOOST_REQUIRE(back);
  BOOST_TEST((*back)->record().digests.empty());
  BOOST_TEST(check_ranges(**back, everything(spec.tensors), 2).ok());
}

BOOST_AUTO_TEST_CASE(checking_finds_changed_bytes_of_a_model) {
  world w{pool_way::memory};
  w.store_or_fail("net", mib, 1);
  std::uint64_t at = 0;
  {
    auto lent = fetch(**open(*w.models, "net"), {{1, 0, 300}});
    BOOST_REQUIRE(lent);
    at = static_cast<std::uint64_t>(lent->pieces.at(0).data - w.owner->mappings().at(0).data);
  }
  w.close();
  auto file = ::open(w.place.path().c_str(), O_RDWR);
  char byte = 0;
  BOOST_REQUIRE(::pread(file, &byte, 1, static_cast<off_t>(at)) == 1);
  byte = static_cast<char>(byte ^ 4);
  BOOST_REQUIRE(::pwrite(file, &byte, 1, static_cast<off_t>(at)) == 1);
  ::close(file);
  w.open();
  auto report = w.checked();
  BOOST_REQUIRE(report.problems.size() == 1u);
  BOOST_TEST(
    report.problems[0].find("model net, version 1 of the repository: tensor t1") == 0u,
    report.problems[0]);
}

/// Takes space for models until there is none, and returns the percentage of the pool that their
/// bytes are. `next_size` draws their sizes.
template <class F>
std::uint64_t percent_taken(F next_size, std::uint64_t pool_bytes = 256 * mib) {
  world w{pool_way::memory, pool_bytes};
  std::vector<std::unique_ptr<reservation>> taken;
  std::uint64_t sum = 0;
  for (;;) {
    auto size = next_size();
    auto one = reserve(*w.models, spec_of("net" + std::to_string(taken.size()), {size}));
    if (!one) {
      BOOST_TEST((one.error().code() == errc::no_space), one.error().to_string());
      return sum * 100 / pool_bytes;
    }
    sum += size;
    taken.push_back(std::move(*one));
  }
}

BOOST_AUTO_TEST_CASE(a_pool_holds_models_of_any_size_up_to_85_percent) {
  std::vector<std::uint64_t> sizes = {65'536,  66'000,    74'752,    100'000,
                                      262'144, 1'000'000, 1'306'624, 1'568'768};
  for (auto size = 80'000u; size <= 16 * mib; size += size / 7)
    sizes.push_back(size);
  for (std::uint64_t size = mib; size <= 16 * mib; size += mib)
    sizes.push_back(size);
  for (auto size : sizes) {
    auto percent = percent_taken([&] { return size; });
    BOOST_TEST_MESSAGE(size << " bytes: " << percent << " %");
    BOOST_TEST(percent >= 85u, size << " bytes");
  }
}

// The figures of docs/configuration.md.
BOOST_AUTO_TEST_CASE(smaller_pools_hold_less_and_as_much_as_the_manual_says) {
  struct figure {
    std::uint64_t pool_bytes, least_percent;
  };
  for (auto [pool_bytes, least_percent] :
       {figure{128 * mib, 85}, figure{64 * mib, 80}, figure{16 * mib, 55}})
    for (std::uint64_t size = 65'536; size <= pool_bytes / 16; size += size / 3) {
      auto percent = percent_taken([&] { return size; }, pool_bytes);
      BOOST_TEST_MESSAGE(pool_bytes / mib << " MiB, " << size << " bytes: " << percent << " %");
      BOOST_TEST(percent >= least_percent, pool_bytes / mib << " MiB, " << size << " bytes");
    }
}

BOOST_AUTO_TEST_CASE(a_pool_holds_models_of_mixed_sizes) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    dice by{seed};
    auto percent = percent_taken([&] {
      auto size = 65'536 + by.below(65'536);
      return size << by.below(8);
    });
    BOOST_TEST_MESSAGE("mixed: " << percent << " %");
    BOOST_TEST(percent >= 75u);
  }
}

BOOST_DATA_TEST_CASE(
  what_is_stored_fills_a_pool_up_to_85_percent, data::make({65'536u, 1'000'000u}), size) {
  constexpr auto pool_bytes = 256 * mib;
  world w{pool_way::memory, pool_bytes};
  std::uint64_t count = 0;
  auto last = store(*w.models, spec_of("net0", {size}), 1);
  for (; last; last = store(*w.models, spec_of("net" + std::to_string(count), {size}), 1))
    ++count;
  BOOST_TEST((last.error().code() == errc::no_space), last.error().to_string());
  BOOST_TEST_MESSAGE(count << " models of " << size << " bytes");
  BOOST_TEST(count * size * 100 / pool_bytes >= 85u);
  BOOST_TEST(w.models->stats().models == count);
  // Room that one gives up is the next one's.
  BOOST_TEST(erase(*w.models, "net3").ok());
  BOOST_TEST(store(*w.models, spec_of("again", {size}), 2).has_value());
  w.check_whole();
}

// Otherwise its group could not be changed, and nothing in it erased.
BOOST_DATA_TEST_CASE(
  a_pool_without_room_takes_marks_and_the_providers_own_records, data::make({16u, 64u, 256u}),
  size_mib) {
  world w{pool_way::memory, size_mib * mib};
  auto own = spec_of(std::string{own_name_prefix} + "placement", {});
  auto store_own = [&](std::size_t length) {
    own.metadata = {{"placement", std::string(length, 'p')}};
    auto stored = store(*w.models, own, 1);
    BOOST_TEST(stored.has_value(), length << " bytes: " << why(stored));
  };
  std::vector<std::string> names;
  for (std::uint64_t size : {size_mib * mib / 16, mib / 16, std::uint64_t{2'000}, std::uint64_t{1}})
    for (auto name = std::to_string(size) + "-0"; store(*w.models, spec_of(name, {size}), 1);
         name = std::to_string(size) + "-" + std::to_string(names.size()))
      names.push_back(name);
  for (std::size_t length : {300, 3'000, 10'000, 300})
    store_own(length);
  w.close();
  w.open();
  store_own(4'000);
  auto mark = spec_of({}, {});
  mark.pinned = mark.erased = true;
  mark.group = "default";
  for (std::size_t i = 0; i < std::min<std::size_t>(names.size(), 200); ++i) {
    mark.name = names[i];
    auto stored = store(*w.models, mark, 1);
    BOOST_TEST(stored.has_value(), i << ", " << mark.name << ": " << why(stored));
  }
  store_own(500);
  w.check_whole();
}

BOOST_DATA_TEST_CASE(
  what_describes_kept_models_is_counted_and_stays_when_the_bound_is_lowered, ways, way) {
  world w{way};
  auto with_text = [](const std::string& name) {
    auto spec = spec_of(name, {100, mib});
    spec.metadata = {{"notes", std::string(100'000, 'x')}};
    return spec;
  };
  for (std::string name : {"a", "b", "c"})
    BOOST_REQUIRE(store(*w.models, with_text(name), 1));
  auto before = w.models->stats();
  BOOST_TEST(before.descriptions_bytes >= 300'000u);
  w.close();
  w.options.descriptions_max_bytes = 1;
  w.open();
  BOOST_TEST(w.models->stats().descriptions_bytes == before.descriptions_bytes);
  BOOST_TEST(w.models->stats().used_bytes == before.used_bytes);
  BOOST_TEST(check_model(*w.models, "b", 1).ok());
  auto refused = store(*w.models, with_text("d"), 1);
  BOOST_TEST((!refused && refused.error().code() == errc::no_space));
  BOOST_TEST(erase(*w.models, "b").ok());
  BOOST_TEST(w.models->stats().descriptions_bytes == before.descriptions_bytes / 3 * 2);
  w.check_whole();
}

BOOST_AUTO_TEST_SUITE_END()
