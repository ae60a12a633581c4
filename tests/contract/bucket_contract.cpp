// The promises of every bucket, one test case each, named as sentences.
#include "bucket_contract.hpp"

#include <millrace/core/digest.hpp>
#include <millrace/core/model_graph.hpp>
#include <millrace/tests/support/bucket_driving.hpp>
#include <millrace/tests/support/heap_memory_source.hpp>
#include <millrace/tests/support/held_completion.hpp>
#include <millrace/tests/support/memory_bound.hpp>

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <thread>

namespace millrace::testing {

using namespace storage;

namespace {

constexpr std::uint64_t kib = 1024, mib = 1024 * kib;

/// The bucket of one case.
struct world {
  world(const bucket_factory& factory, contract_settings settings = {}) {
    settings.memory = memory = std::make_shared<heap_memory_source>(64 * mib);
    subject = factory(settings);
    BOOST_REQUIRE(subject != nullptr);
  }

  std::uint64_t used() const { return subject->stats().used_bytes; }

  std::shared_ptr<heap_memory_source> memory;
  std::shared_ptr<bucket> subject;
};

#define CHECK_OK(expression)                                                                       \
  do {                                                                                             \
    auto outcome_ = (expression);                                                                  \
    BOOST_CHECK_MESSAGE(outcome_.ok(), #expression " gave " << outcome_.to_string());              \
  } while (false)

template <class T>
errc code_of(const result<T>& outcome) {
  return outcome ? errc::ok : outcome.error().code();
}

#define CHECK_CODE(expression, expected) BOOST_TEST((code_of(expression) == errc::expected))

// Sizes at the borders of words, alignment, digest blocks and windows.
constexpr auto block = digest_block_bytes;
const std::vector<std::uint64_t> awkward_sizes = {
  0, 1, 63, 64, 65, 4095, 4096, 4097, block - 1, block, block + 1, 0, 3 * mib + 17};

void a_published_model_reads_back_whole(const bucket_factory& factory) {
  world w{factory};
  auto version = store(*w.subject, spec_of("m", awkward_sizes), 1);
  BOOST_REQUIRE_MESSAGE(version, why(version));
  CHECK_OK(check_model(*w.subject, "m", 1));
  auto model = open(*w.subject, "m", *version);
  BOOST_REQUIRE(model);
  BOOST_TEST((*model)->record().version == *version);
  BOOST_TEST(((*model)->record().spec == spec_of("m", awkward_sizes)));
  BOOST_TEST((*model)->record().stored_at_ns > 0u);
  BOOST_TEST(w.subject->stats().models == 1u);
}

void a_small_model_reads_back_whole(const bucket_factory& factory) {
  world w{factory};
  BOOST_REQUIRE(store(*w.subject, spec_of("small", {3, 0, 4096, 100}), 2));
  CHECK_OK(check_model(*w.subject, "small", 2));
}

void a_model_without_bytes_is_a_model(const bucket_factory& factory) {
  world w{factory};
  BOOST_REQUIRE(store(*w.subject, spec_of("empty", {}), 1));
  BOOST_REQUIRE(store(*w.subject, spec_of("zeros", {0, 0}), 1));
  CHECK_OK(check_model(*w.subject, "empty", 1));
  CHECK_OK(check_model(*w.subject, "zeros", 1));
}

void a_scalar_is_a_tensor(const bucket_factory& factory) {
  world w{factory};
  auto spec = spec_of("scalar", {});
  spec.tensors.tensors.push_back({"loss", dtype::f64, {}});
  BOOST_REQUIRE(store(*w.subject, spec, 3));
  CHECK_OK(check_model(*w.subject, "scalar", 3));
}

void many_tensors_are_one_model(const bucket_factory& factory) {
  world w{factory};
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t i = 0; i < 2000; ++i)
    sizes.push_back(i * 7 % 5000);
  BOOST_REQUIRE(store(*w.subject, spec_of("many", sizes), 4));
  CHECK_OK(check_model(*w.subject, "many", 4));
}

void nothing_is_visible_before_publish(const bucket_factory& factory) {
  world w{factory};
  auto room = reserve(*w.subject, spec_of("m", {mib}));
  BOOST_REQUIRE(room);
  CHECK_CODE(open(*w.subject, "m"), not_found);
  CHECK_OK(fill_windows(**room, 1));
  CHECK_CODE(open(*w.subject, "m"), not_found);
  BOOST_TEST(w.subject->stats().models == 0u);
}

void an_abandoned_reservation_leaves_nothing(const bucket_factory& factory) {
  world w{factory};
  BOOST_REQUIRE(store(*w.subject, spec_of("kept", {mib}), 1));
  auto before = w.used();
  auto room = reserve(*w.subject, spec_of("kept", {5 * mib, 77}));
  BOOST_REQUIRE(room);
  BOOST_TEST(w.used() > before);
  CHECK_OK(fill_windows(**room, 2));
  room->reset();
  BOOST_TEST(settles_at(*w.subject, before));
  CHECK_OK(check_model(*w.subject, "kept", 1));
}

void publishing_needs_every_window(const bucket_factory& factory) {
  world w{factory};
  auto room = reserve(*w.subject, spec_of("m", {mib}));
  BOOST_REQUIRE(room);
  auto publish = [&] {
    return await<std::uint64_t>([&](auto done) { (*room)->publish({}, std::move(done)); });
  };
  CHECK_CODE(publish(), invalid_argument);
  CHECK_CODE(
    await<void>([&](auto done) { (*room)->commit(0, std::move(done)); }), invalid_argument);
  auto beyond = (*room)->window_count();
  CHECK_CODE(acquire(**room, beyond), invalid_argument);
  CHECK_OK(fill_windows(**room, 1));
  CHECK_CODE(acquire(**room, 0), invalid_argument);
  CHECK_CODE(
    await<std::uint64_t>([&](auto done) {
      (*room)->publish({1, 2}, std::move(done));
    }),
    invalid_argument);
  CHECK_CODE(publish(), ok);
  CHECK_CODE(publish(), invalid_argument);
  CHECK_OK(check_ranges(**open(*w.subject, "m"), {{0, 0, mib}}, 1));
}

void pieces_are_aligned_and_cut_at_digest_blocks(const bucket_factory& factory) {
  world w{factory};
  auto room = reserve(*w.subject, spec_of("m", awkward_sizes));
  BOOST_REQUIRE(room);
  if (w.subject->capabilities().in_place)
    BOOST_TEST((*room)->window_count() == 1u);
  std::uint64_t sum = 0;
  for (std::uint32_t i = 0; i < (*room)->window_count(); ++i) {
    auto lent = acquire(**room, i);
    BOOST_REQUIRE(lent);
    BOOST_TEST(lent->index == i);
    for (auto& p : lent->pieces) {
      BOOST_TEST(reinterpret_cast<std::uintptr_t>(p.data) % 64 == 0u);
      BOOST_TEST(p.tensor_offset % digest_block_bytes == 0u);
      auto ends = p.tensor_offset + p.length == awkward_sizes[p.tensor];
      BOOST_TEST((p.length % digest_block_bytes == 0 || ends));
      BOOST_TEST(p.length > 0u);
      sum += p.length;
    }
    lent->hold.reset();
    BOOST_TEST(
      (code_of(await<void>([&](auto done) { (*room)->commit(i, std::move(done)); })) == errc::ok));
  }
  std::uint64_t expected = 0;
  for (auto size : awkward_sizes)
    expected += size;
  BOOST_TEST(sum == expected);
}

void a_hold_outlives_an_abandoned_reservation(const bucket_factory& factory) {
  world w{factory};
  auto room = reserve(*w.subject, spec_of("m", {mib}));
  BOOST_REQUIRE(room);
  auto needs = (*room)->window_bytes();
  auto staging = needs == 0 ? memory_block{} : *w.memory->allocate(needs, 4096);
  auto lent = await<window>(
    [&](auto done) { (*room)->acquire(0, std::exchange(staging, {}), std::move(done)); });
  BOOST_REQUIRE(lent);
  room->reset();
  // With an in-place bucket, the memory is the bucket's own space, which may lie elsewhere.
  BOOST_TEST((w.subject->capabilities().in_place ? w.used() : w.memory->used_bytes()) > 0u);
  // A thread that still moves bytes may go on; the sanitizers would report an invalid access.
  fill(lent->pieces[0].data, lent->pieces[0].length, 1, 0, 0);
  lent->hold.reset();
  BOOST_TEST(settles_at(*w.subject, 0));
  BOOST_TEST(w.memory->used_bytes() == 0u);
}

void an_overwritten_version_stays_readable_while_open(const bucket_factory& factory) {
  world w{factory};
  for (auto size : {2 * mib + 5, std::uint64_t{100}}) {
    auto first = store(*w.subject, spec_of("m", {size}), 1);
    auto once = w.used();
    auto reader = open(*w.subject, "m");
    BOOST_REQUIRE(reader);
    auto second = store(*w.subject, spec_of("m", {size}), 2);
    BOOST_REQUIRE(second);
    BOOST_TEST(*second > *first);
    CHECK_OK(check_model(*w.subject, "m", 2));
    CHECK_OK(check_ranges(**reader, everything((*reader)->record().spec.tensors), 1));
    BOOST_TEST((*reader)->record().version == *first);
    CHECK_CODE(open(*w.subject, "m", *first), not_found);
    CHECK_CODE(open(*w.subject, "m", *second), ok);
    reader->reset();
    BOOST_TEST(settles_at(*w.subject, once));
    BOOST_TEST((erase(*w.subject, "m", *first).code() == errc::not_found));
    CHECK_OK(erase(*w.subject, "m", *second));
  }
}

void an_erased_model_stays_readable_while_open(const bucket_factory& factory) {
  world w{factory};
  BOOST_REQUIRE(store(*w.subject, spec_of("m", {2 * mib}), 1));
  auto reader = open(*w.subject, "m");
  CHECK_OK(erase(*w.subject, "m"));
  CHECK_CODE(open(*w.subject, "m"), not_found);
  BOOST_TEST((erase(*w.subject, "m").code() == errc::not_found));
  BOOST_TEST(w.subject->stats().models == 0u);
  // The space is not given to another model while it is read.
  BOOST_REQUIRE(store(*w.subject, spec_of("other", {2 * mib}), 2));
  CHECK_OK(check_ranges(**reader, everything((*reader)->record().spec.tensors), 1));
  reader->reset();
  CHECK_OK(erase(*w.subject, "other"));
  BOOST_TEST(settles_at(*w.subject, 0));
}

void versions_are_never_used_twice(const bucket_factory& factory) {
  world w{factory};
  std::uint64_t last = 0;
  for (std::uint64_t after : {0u, 0u, 1000u, 5u, 0u}) {
    auto spec = spec_of("m", {10});
    spec.version_after = after;
    auto version = store(*w.subject, spec, 1).value();
    BOOST_TEST(version > std::max(std::exchange(last, version), after));
    CHECK_OK(erase(*w.subject, "m"));
  }
}

void ranges_of_digest_blocks_are_read_alone(const bucket_factory& factory) {
  world w{factory};
  std::vector<std::uint64_t> sizes = {5 * digest_block_bytes + 100, 70, 3 * mib};
  BOOST_REQUIRE(store(*w.subject, spec_of("m", sizes), 6));
  auto model = open(*w.subject, "m");
  BOOST_REQUIRE(model);
  for (std::vector<wanted> ranges : std::vector<std::vector<wanted>>{
         {{0, 0, block}},
         {{0, 4 * block, block + 100}},
         {{0, 5 * block, 100}},
         {{1, 0, 70}},
         {{2, block, 3 * block}, {0, 2 * block, block}, {1, 0, 70}},
         {{2, 0, 0}},
         {}})
    CHECK_OK(check_ranges(**model, ranges, 6));
  for (wanted bad : std::vector<wanted>{
         {3, 0, 0},
         {0, 1, block},
         {0, 0, 100},
         {1, 0, 71},
         {0, 6 * block, 0},
         {2, 0, ~0ull / block * block}})
    CHECK_CODE(fetch(**model, {bad}), invalid_argument);
}

// A range requested twice arrives twice, and ranges that touch arrive apart: the caller has a place
// for each.
void ranges_that_touch_or_overlap_stay_apart(const bucket_factory& factory) {
  world w{factory};
  BOOST_REQUIRE(store(*w.subject, spec_of("m", {5 * block + 100, 70, 3 * mib}), 6));
  auto model = open(*w.subject, "m");
  BOOST_REQUIRE(model);
  for (const auto& ranges : std::vector<std::vector<wanted>>{
         {{0, 0, block}, {0, block, block}, {1, 0, 70}},
         {{0, 0, block}, {0, 0, block}, {0, block, 2 * block}, {0, 2 * block, block}, {1, 0, 70}},
         {{0, 2 * block, block}, {0, 3 * block, 2 * block + 100}, {1, 0, 70}, {2, 0, block}},
         {{2, 0, 2 * mib}, {2, 2 * mib, mib}, {1, 0, 70}, {1, 0, 70}},
         {{0, block, block}, {0, 0, block}, {0, block, block}}})
    CHECK_OK(check_ranges(**model, ranges, 6));
}

void a_full_bucket_says_so(const bucket_factory& factory) {
  world w{factory, {.capacity_bytes = 8 * mib}};
  BOOST_TEST(w.subject->stats().capacity_bytes == 8 * mib);
  BOOST_REQUIRE(store(*w.subject, spec_of("a", {5 * mib}), 1));
  auto before = w.used();
  auto refused = reserve(*w.subject, spec_of("b", {5 * mib}));
  CHECK_CODE(refused, no_space);
  BOOST_TEST(refused.error().detail().find("free") != std::string::npos);
  BOOST_TEST(refused.error().detail().find("asked") != std::string::npos);
  BOOST_TEST(settles_at(*w.subject, before));
  CHECK_OK(check_model(*w.subject, "a", 1));
  CHECK_OK(erase(*w.subject, "a"));
  BOOST_TEST(settles_at(*w.subject, 0));
  BOOST_REQUIRE(store(*w.subject, spec_of("b", {5 * mib}), 2));
}

// Otherwise a full provider could neither learn which providers there are nor erase.
void a_full_bucket_takes_marks_and_the_providers_own_records(const bucket_factory& factory) {
  world w{factory, {.capacity_bytes = 8 * mib}};
  auto own = spec_of(std::string{own_name_prefix} + "placement", {});
  own.metadata = {{"placement", std::string(500, 'p')}};
  BOOST_REQUIRE(store(*w.subject, own, 1));
  std::vector<std::string> names;
  for (auto size : {mib, mib / 8, mib / 64, kib})
    for (auto name = std::to_string(size); store(*w.subject, spec_of(name, {size}), 1); name += "+")
      names.push_back(name);
  BOOST_TEST(w.subject->stats().models == names.size());
  for (std::size_t length : {400, 600, 10'000}) {
    own.metadata = {{"placement", std::string(length, 'p')}};
    auto stored = store(*w.subject, own, 1);
    BOOST_TEST(stored.has_value(), why(stored));
  }
  auto mark = spec_of({}, {});
  mark.pinned = mark.erased = true;
  mark.group = "default";
  auto models = names.size();
  for (auto& name : {names.front(), names[names.size() / 2], names.back()}) {
    mark.name = name;
    auto stored = store(*w.subject, mark, 1);
    BOOST_TEST(stored.has_value(), name << ": " << why(stored));
    BOOST_TEST(w.subject->stats().models == --models);
    CHECK_OK(erase(*w.subject, name));
  }
  // Marks of names without a model are bounded as models are.
  auto refused = 0;
  mark.metadata = {{"", std::string(64 * kib, 'm')}};
  for (auto i = 0; i < 500 && refused == 0; ++i) {
    mark.name = "other-" + std::to_string(i);
    refused += !store(*w.subject, mark, 1);
  }
  BOOST_TEST(refused == 1);
}

// The refusal must come before the bucket allocates anything as large as the model's shape.
void a_model_larger_than_the_bucket_costs_no_memory(const bucket_factory& factory) {
  world w{factory, {.capacity_bytes = 8 * mib}};
  BOOST_REQUIRE(store(*w.subject, spec_of("a", {mib}), 1));
  {
    memory_bound bound{256 * mib};
    CHECK_CODE(reserve(*w.subject, spec_of("b", {16 * mib * mib})), no_space);
    CHECK_CODE(reserve(*w.subject, spec_of("c", {1, 16 * mib * mib, 3})), no_space);
  }
  CHECK_OK(check_model(*w.subject, "a", 1));
}

void the_least_recently_used_model_makes_room(const bucket_factory& factory) {
  world w{factory, {.capacity_bytes = 10 * mib, .full = when_full::evict}};
  if (!w.subject->capabilities().evicts)
    return;
  for (auto name : {"a", "b", "c"})
    BOOST_REQUIRE(store(*w.subject, spec_of(name, {3 * mib}), 1));
  BOOST_REQUIRE(open(*w.subject, "a")); // and closed at once: used after b and c
  BOOST_REQUIRE(store(*w.subject, spec_of("d", {3 * mib}), 1));
  CHECK_CODE(open(*w.subject, "b"), not_found);
  for (auto name : {"a", "c", "d"})
    CHECK_OK(check_model(*w.subject, name, 1));
  BOOST_TEST(w.subject->stats().evictions == 1u);
}

void pinned_and_open_models_are_not_evicted(const bucket_factory& factory) {
  world w{factory, {.capacity_bytes = 10 * mib, .full = when_full::evict}};
  if (!w.subject->capabilities().evicts)
    return;
  auto pinned = spec_of("pinned", {3 * mib});
  pinned.pinned = true;
  BOOST_REQUIRE(store(*w.subject, pinned, 1));
  BOOST_REQUIRE(store(*w.subject, spec_of("open", {3 * mib}), 1));
  BOOST_REQUIRE(store(*w.subject, spec_of("idle", {3 * mib}), 1));
  auto reader = open(*w.subject, "open");
  BOOST_REQUIRE(store(*w.subject, spec_of("new", {3 * mib}), 1));
  CHECK_CODE(open(*w.subject, "idle"), not_found);
  // Dropping everything possible would not make enough space, so nothing is dropped.
  CHECK_CODE(reserve(*w.subject, spec_of("large", {8 * mib})), no_space);
  for (auto name : {"pinned", "open", "new"})
    CHECK_OK(check_model(*w.subject, name, 1));
  BOOST_TEST(w.subject->stats().evictions == 1u);
}

layer_id id_of(std::uint8_t n) {
  layer_id id;
  id.bytes.fill(n);
  return id;
}

described_layer described(std::uint8_t n) { return {id_of(n), {std::byte{n}, std::byte{1}}}; }

model_spec spec_with_layers(std::string name, const std::vector<std::uint8_t>& layers) {
  auto spec = spec_of(std::move(name), {100, 200});
  compact_graph graph;
  for (auto n : layers)
    graph.ids.push_back(id_of(n));
  graph.inputs.resize(layers.size());
  spec.graph = encode_graph(graph);
  spec.tensor_layers = {0, static_cast<std::uint32_t>(layers.size() - 1)};
  return spec;
}

result<std::vector<described_layer>> resolve(bucket& subject, std::vector<layer_id> ids) {
  return await<std::vector<described_layer>>(
    [&](auto done) { subject.resolve(std::move(ids), std::move(done)); });
}

void layers_are_described_once(const bucket_factory& factory) {
  world w{factory};
  CHECK_CODE(reserve(*w.subject, spec_with_layers("a", {1, 2})), unknown_layers);
  CHECK_CODE(reserve(*w.subject, spec_with_layers("a", {1, 2}), {described(1)}), unknown_layers);
  BOOST_REQUIRE(
    store(*w.subject, spec_with_layers("a", {1, 2, 1}), 1, {described(1), described(2)}));
  BOOST_REQUIRE(store(*w.subject, spec_with_layers("b", {2, 1}), 1));
  auto found = resolve(*w.subject, {id_of(2), id_of(1)});
  BOOST_REQUIRE(found);
  BOOST_TEST((*found == std::vector{described(2), described(1)}));
  CHECK_CODE(resolve(*w.subject, {id_of(1), id_of(3)}), not_found);
}

void layers_are_forgotten_with_their_last_model(const bucket_factory& factory) {
  world w{factory};
  BOOST_REQUIRE(store(*w.subject, spec_with_layers("a", {1, 2}), 1, {described(1), described(2)}));
  BOOST_REQUIRE(store(*w.subject, spec_with_layers("b", {2, 3}), 1, {described(3)}));
  CHECK_OK(erase(*w.subject, "a"));
  CHECK_CODE(resolve(*w.subject, {id_of(1)}), not_found);
  CHECK_CODE(resolve(*w.subject, {id_of(2), id_of(3)}), ok);
  // A version that replaces another one keeps the layers that both name.
  BOOST_REQUIRE(store(*w.subject, spec_with_layers("b", {3}), 1));
  CHECK_CODE(resolve(*w.subject, {id_of(3)}), ok);
  CHECK_CODE(resolve(*w.subject, {id_of(2)}), not_found);
  CHECK_CODE(reserve(*w.subject, spec_with_layers("c", {1})), unknown_layers);
}

// Stores models of one byte, each with what `describe` adds, until one is refused. Returns how many
// were stored.
std::uint64_t store_described(
  bucket& subject, const std::function<std::vector<described_layer>(model_spec&)>& describe) {
  for (std::uint64_t i = 0; i < 100; ++i) {
    auto spec = spec_of("m" + std::to_string(i), {1});
    auto layers = describe(spec);
    auto stored = store(subject, std::move(spec), i, std::move(layers));
    if (!stored) {
      CHECK_CODE(stored, no_space);
      return i;
    }
  }
  return 100;
}

// Fills a bucket as `store_described` does, and empties it. `least_bytes`: of what each model adds.
void describing_takes_space(
  const bucket_factory& factory, std::uint64_t descriptions_max_bytes, std::uint64_t least_bytes,
  const std::function<std::vector<described_layer>(model_spec&)>& describe) {
  world w{factory, {.capacity_bytes = 16 * mib, .descriptions_max_bytes = descriptions_max_bytes}};
  auto stored = store_described(*w.subject, describe);
  BOOST_TEST(stored >= 2u);
  BOOST_TEST(stored * least_bytes <= 16 * mib);
  BOOST_TEST(w.used() >= stored * least_bytes);
  BOOST_TEST(w.used() <= 16 * mib);
  BOOST_TEST(w.subject->stats().descriptions_bytes >= stored);
  BOOST_TEST(w.subject->stats().descriptions_bytes <= descriptions_max_bytes);
  for (std::uint64_t i = 0; i < stored; ++i)
    CHECK_OK(erase(*w.subject, "m" + std::to_string(i)));
  BOOST_TEST(settles_at(*w.subject, 0));
  BOOST_TEST(w.subject->stats().descriptions_bytes == 0u);
}

void texts_of_models_take_space(const bucket_factory& factory) {
  describing_takes_space(factory, 4 * mib, mib, [](model_spec& spec) {
    spec.metadata = {{"notes", std::string(mib, 'x')}};
    return std::vector<described_layer>{};
  });
}

void tensors_without_bytes_take_space(const bucket_factory& factory) {
  constexpr std::uint64_t tensors = 20'000;
  describing_takes_space(factory, 16 * mib, tensors * 8, [](model_spec& spec) {
    spec.tensors = spec_of("", std::vector<std::uint64_t>(tensors, 0)).tensors;
    return std::vector<described_layer>{};
  });
}

std::vector<described_layer> with_large_layer(model_spec& spec) {
  described_layer layer{random_id<layer_id>(), std::vector<std::byte>(mib)};
  spec.graph = encode_graph(compact_graph{{layer.id}, {{}}});
  return {layer};
}

void descriptions_of_layers_take_space(const bucket_factory& factory) {
  for (auto most : {4 * mib, 16 * mib})
    describing_takes_space(factory, most, mib, with_large_layer);
}

void what_is_kept_in_memory_of_models_is_bounded(const bucket_factory& factory) {
  constexpr auto most = 64 * kib;
  world w{factory, {.descriptions_max_bytes = most}};
  auto stored =
    store_described(*w.subject, [](model_spec&) { return std::vector<described_layer>{}; });
  BOOST_TEST((stored >= 8u && stored <= 64u), stored);
  BOOST_TEST(w.subject->stats().descriptions_bytes <= most);
  auto refused = store(*w.subject, spec_of("one more", {1}), 1);
  BOOST_REQUIRE(!refused);
  BOOST_TEST(refused.error().detail().find("one more") != std::string::npos, why(refused));
  BOOST_TEST(refused.error().detail().find("descriptions_max") != std::string::npos, why(refused));
  // What a full provider must take, it takes.
  auto mark = spec_of("m0", {});
  mark.erased = mark.pinned = true;
  BOOST_TEST(store(*w.subject, mark, 1).has_value());
  BOOST_TEST(w.subject->stats().marks == 1u);
  BOOST_TEST(w.subject->stats().models == stored - 1);
}

void descriptions_make_room_as_tensors_do(const bucket_factory& factory) {
  world w{
    factory,
    {.capacity_bytes = 16 * mib, .full = when_full::evict, .descriptions_max_bytes = 4 * mib}};
  if (!w.subject->capabilities().evicts)
    return;
  BOOST_TEST(store_described(*w.subject, with_large_layer) == 100u);
  BOOST_TEST(w.subject->stats().evictions >= 80u);
  BOOST_TEST(w.subject->stats().descriptions_bytes <= 4 * mib);
  CHECK_OK(check_model(*w.subject, "m99", 99));
}

void specs_that_make_no_sense_are_refused(const bucket_factory& factory) {
  world w{factory};
  CHECK_CODE(reserve(*w.subject, spec_of("", {1})), invalid_argument);
  auto twice = spec_of("m", {1, 1});
  twice.tensors.tensors[1].name = "t0";
  CHECK_CODE(reserve(*w.subject, twice), invalid_argument);
  auto layerless = spec_of("m", {1, 1});
  layerless.tensor_layers = {0, 1};
  CHECK_CODE(reserve(*w.subject, layerless), invalid_argument);
  auto garbled = spec_of("m", {1});
  garbled.graph = {std::byte{0xff}, std::byte{0xff}};
  CHECK_CODE(reserve(*w.subject, garbled), invalid_argument);
  BOOST_TEST(w.used() == 0u);
}

result<std::vector<model_summary>> list(
  bucket& subject, std::string prefix, std::string after, std::uint32_t count_max) {
  return await<std::vector<model_summary>>([&](auto done) {
    subject.list(std::move(prefix), std::move(after), count_max, std::move(done));
  });
}

void listings_come_in_pages(const bucket_factory& factory) {
  world w{factory};
  for (auto name : {"run/3", "run/1", "other", "run/2", "zoo"})
    BOOST_REQUIRE(store(*w.subject, spec_of(name, {10, 20}), 1));
  std::vector<std::string> names;
  std::string after;
  for (;;) {
    auto page = list(*w.subject, "run/", after, 2);
    BOOST_REQUIRE(page);
    if (page->empty())
      break;
    BOOST_TEST(page->size() <= 2u);
    for (auto& summary : *page) {
      BOOST_TEST(summary.size_bytes == 30u);
      BOOST_TEST(summary.tensors == 2u);
      names.push_back(summary.name);
    }
    after = page->back().name;
  }
  BOOST_TEST((names == std::vector<std::string>{"run/1", "run/2", "run/3"}));
  BOOST_TEST(list(*w.subject, "", "", 100)->size() == 5u);
}

void pinning_shows_in_the_record(const bucket_factory& factory) {
  world w{factory};
  BOOST_REQUIRE(store(*w.subject, spec_of("m", {10}), 1));
  auto pin = [&](std::string name, bool pinned) {
    return await<void>([&](auto done) { w.subject->pin(name, pinned, std::move(done)); });
  };
  for (auto pinned : {true, false}) {
    CHECK_CODE(pin("m", pinned), ok);
    BOOST_TEST((*open(*w.subject, "m"))->record().spec.pinned == pinned);
    BOOST_TEST(list(*w.subject, "", "", 1)->at(0).pinned == pinned);
  }
  CHECK_CODE(pin("nobody", true), not_found);
  CHECK_OK(check_model(*w.subject, "m", 1));
}

void reservations_run_side_by_side(const bucket_factory& factory) {
  world w{factory};
  std::atomic<int> failures = 0;
  auto work = [&](int thread) {
    for (auto round = 0; round < 8; ++round) {
      auto name = "m" + std::to_string(thread % 2 == 0 ? 0 : thread);
      auto seed = static_cast<std::uint64_t>(thread % 2 == 0 ? 7 : 100 * thread + round);
      if (
        !store(*w.subject, spec_of(name, {mib + 9, 0, 300}), seed) ||
        !check_model(*w.subject, name, seed).ok())
        ++failures;
    }
  };
  std::vector<std::thread> threads;
  for (auto i = 0; i < 4; ++i)
    threads.emplace_back(work, i);
  for (auto& t : threads)
    t.join();
  BOOST_TEST(failures == 0);
  BOOST_TEST(w.subject->stats().models == 3u);
}

void a_closed_bucket_refuses(const bucket_factory& factory) {
  world w{factory};
  BOOST_REQUIRE(store(*w.subject, spec_of("m", {mib}), 1));
  auto reader = open(*w.subject, "m");
  CHECK_OK(w.subject->close(5000));
  CHECK_CODE(reserve(*w.subject, spec_of("n", {1})), unavailable);
  CHECK_CODE(open(*w.subject, "m"), unavailable);
  BOOST_TEST((erase(*w.subject, "m").code() == errc::unavailable));
  CHECK_CODE(list(*w.subject, "", "", 1), unavailable);
  w.subject.reset();
  reader->reset();
}

void closing_waits_for_what_was_begun(const bucket_factory& factory) {
  world w{factory};
  auto room = reserve(*w.subject, spec_of("m", {mib}));
  BOOST_REQUIRE(room);
  status closed{errc::internal, "not closed"};
  std::thread closing{[&] { closed = w.subject->close(20'000); }};
  while (code_of(open(*w.subject, "m")) == errc::not_found)
    std::this_thread::yield();
  CHECK_OK(fill_windows(**room, 1));
  CHECK_CODE(await<std::uint64_t>([&](auto done) { (*room)->publish({}, std::move(done)); }), ok);
  closing.join();
  CHECK_OK(closed);
}

void closing_ends_at_its_deadline(const bucket_factory& factory) {
  world w{factory};
  auto room = reserve(*w.subject, spec_of("m", {mib}));
  BOOST_REQUIRE(room);
  BOOST_TEST((w.subject->close(10).code() == errc::deadline_exceeded));
}

struct named_case {
  const char* name;
  void (*run)(const bucket_factory&);
};

#define CASE(name)                                                                                 \
  named_case { #name, name }

const named_case cases[] = {
  CASE(a_published_model_reads_back_whole),
  CASE(a_small_model_reads_back_whole),
  CASE(a_model_without_bytes_is_a_model),
  CASE(a_scalar_is_a_tensor),
  CASE(many_tensors_are_one_model),
  CASE(nothing_is_visible_before_publish),
  CASE(an_abandoned_reservation_leaves_nothing),
  CASE(publishing_needs_every_window),
  CASE(pieces_are_aligned_and_cut_at_digest_blocks),
  CASE(a_hold_outlives_an_abandoned_reservation),
  CASE(an_overwritten_version_stays_readable_while_open),
  CASE(an_erased_model_stays_readable_while_open),
  CASE(versions_are_never_used_twice),
  CASE(ranges_of_digest_blocks_are_read_alone),
  CASE(ranges_that_touch_or_overlap_stay_apart),
  CASE(small_models_are_read_before_the_calls_return),
  CASE(a_full_bucket_says_so),
  CASE(a_full_bucket_takes_marks_and_the_providers_own_records),
  CASE(a_model_larger_than_the_bucket_costs_no_memory),
  CASE(the_least_recently_used_model_makes_room),
  CASE(pinned_and_open_models_are_not_evicted),
  CASE(layers_are_described_once),
  CASE(layers_are_forgotten_with_their_last_model),
  CASE(texts_of_models_take_space),
  CASE(tensors_without_bytes_take_space),
  CASE(descriptions_of_layers_take_space),
  CASE(what_is_kept_in_memory_of_models_is_bounded),
  CASE(descriptions_make_room_as_tensors_do),
  CASE(specs_that_make_no_sense_are_refused),
  CASE(listings_come_in_pages),
  CASE(pinning_shows_in_the_record),
  CASE(reservations_run_side_by_side),
  CASE(a_closed_bucket_refuses),
  CASE(closing_waits_for_what_was_begun),
  CASE(closing_ends_at_its_deadline),
};

} // namespace

bool add_bucket_contract(const std::string& name, bucket_factory factory, const char* file) {
  namespace ut = boost::unit_test;
  auto* suite = BOOST_TEST_SUITE("bucket_contract_" + name);
  for (auto& c : cases)
    suite->add(
      ut::make_test_case([run = c.run, factory] { run(factory); }, c.name, file, __LINE__));
  ut::framework::master_test_suite().add(suite);
  return true;
}

} // namespace millrace::testing
