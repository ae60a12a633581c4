// Tests where models lie in memory, and the choice of kinds by name.
#include <millrace/storage/builtin.hpp>
#include <millrace/storage/memory/memory_bucket.hpp>
#include <millrace/tests/support/bucket_driving.hpp>
#include <millrace/tests/support/heap_memory_source.hpp>
#include <millrace/tests/support/held_completion.hpp>

#include <boost/test/unit_test.hpp>

using namespace millrace;
using namespace millrace::storage;
using namespace millrace::testing;

namespace {

window window_of(bucket& subject, const std::vector<std::uint64_t>& sizes) {
  auto room = reserve(subject, spec_of("m", sizes));
  BOOST_REQUIRE_MESSAGE(room, why(room));
  return *acquire(**room, 0);
}

} // namespace

BOOST_AUTO_TEST_SUITE(memory_bucket)

BOOST_AUTO_TEST_CASE(a_model_lies_in_one_block_where_it_can) {
  auto memory = std::make_shared<heap_memory_source>(1 << 20);
  auto subject = *open_memory_bucket({0, when_full::refuse}, memory);
  auto lent = window_of(*subject, {100, 0, 1000, 10});
  BOOST_REQUIRE(lent.pieces.size() == 3u);
  BOOST_TEST(lent.pieces[1].data - lent.pieces[0].data == 128);
  BOOST_TEST(lent.pieces[2].data - lent.pieces[1].data == 1024);
  // Counted are the tensors and what describes them.
  BOOST_TEST(subject->stats().used_bytes > 128u + 1024u + 64u);
  BOOST_TEST(subject->stats().used_bytes < 8192u);
  BOOST_TEST(memory->used_bytes() == 128u + 1024u + 64u);
}

BOOST_AUTO_TEST_CASE(fragmented_memory_takes_a_model_in_several_blocks) {
  auto memory = std::make_shared<heap_memory_source>(1 << 20, 64 * 1024);
  auto subject = *open_memory_bucket({0, when_full::refuse}, memory);
  std::vector<std::uint64_t> sizes(16, 30'000);
  BOOST_REQUIRE(store(*subject, spec_of("m", sizes), 1));
  BOOST_TEST(check_model(*subject, "m", 1).ok());
  // A tensor is never cut.
  auto refused = reserve(*subject, spec_of("n", {65 * 1024}));
  BOOST_TEST((refused.error().code() == errc::no_space));
  BOOST_TEST(erase(*subject, "m").ok());
  BOOST_TEST(memory->used_bytes() == 0u);
}

// They lie beside the arena, so a peer must not make them as large as the arena.
BOOST_AUTO_TEST_CASE(what_describes_the_models_is_a_bounded_part_of_the_capacity) {
  constexpr std::uint64_t mib = 1 << 20;
  memory_bucket_options options{16 * mib};
  BOOST_TEST(needs_of(options).heap_bytes == 8 * mib);
  options.descriptions_max_bytes = mib;
  BOOST_TEST(needs_of(options).own_bytes == 16 * mib);
  BOOST_TEST(needs_of(options).heap_bytes == mib);
  auto described = [](const std::string& name) {
    auto spec = spec_of(name, {1});
    spec.metadata = {{"text", std::string(300'000, 't')}};
    return spec;
  };
  for (auto full : {when_full::refuse, when_full::evict}) {
    options.full = full;
    auto subject = *open_memory_bucket(options, std::make_shared<heap_memory_source>(16 * mib));
    for (std::string name : {"a", "b", "c"})
      BOOST_REQUIRE(store(*subject, described(name), 1));
    auto fourth = store(*subject, described("d"), 1);
    BOOST_TEST(fourth.has_value() == (full == when_full::evict));
    BOOST_TEST(subject->stats().models == 3u);
    if (!fourth)
      BOOST_TEST(
        fourth.error().detail().find("raise the bucket's descriptions_max") != std::string::npos,
        why(fourth));
    // There is room for tensors, and for descriptions when others are gone.
    BOOST_REQUIRE(store(*subject, spec_of("large", {12 * mib}), 1));
    BOOST_TEST(erase(*subject, "c").ok());
    BOOST_REQUIRE(store(*subject, described("e"), 1));
    auto refused = store(*subject, spec_of("f", {12 * mib}), 1);
    BOOST_TEST(refused.has_value() == (full == when_full::evict));
  }
}

BOOST_AUTO_TEST_CASE(a_capacity_beyond_the_memory_is_refused) {
  auto memory = std::make_shared<heap_memory_source>(1 << 20);
  BOOST_TEST(!open_memory_bucket({2 << 20, when_full::refuse}, memory));
  BOOST_TEST(!open_memory_bucket({1, when_full::refuse}, nullptr));
}

BOOST_AUTO_TEST_CASE(kinds_are_chosen_by_name) {
  config::option_set options;
  options.edit<memory_bucket_options>().capacity_bytes = 1 << 20;
  for (auto name : {"memory", ""}) {
    auto opened =
      (*bucket_called(name))->open(options, std::make_shared<heap_memory_source>(1 << 20));
    BOOST_TEST(opened->models->kind() == "memory");
    BOOST_TEST(!opened->checkpoints.has_value());
  }
  auto refused = bucket_called("tape");
  BOOST_TEST((refused.error().code() == errc::invalid_argument));
  BOOST_TEST(refused.error().detail().find("memory, rocksdb") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
