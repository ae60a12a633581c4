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
