// Takes providers out while models are erased, and back in: what of the erased models stays.
#include "nodes_of_one_file.hpp"

#include <millrace/storage/rocksdb/rocksdb_bucket.hpp>
#include <millrace/tests/support/bucket_driving.hpp>

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

using namespace millrace;
using namespace millrace::testing;
namespace data = boost::unit_test::data;

namespace {

const provider_list ab = {{"a"}, {"b"}}, abc = {{"a"}, {"b"}, {"c"}};

/// What the providers of a cluster say together.
struct totals {
  std::uint64_t models = 0, marks = 0, descriptions_bytes = 0;

  explicit totals(client c) {
    for (auto& answer : c.status().get())
      for (auto& p : answer.value().providers) {
        models += p.store.models;
        marks += p.store.marks;
        descriptions_bytes += p.store.descriptions_bytes;
      }
  }
};

} // namespace

BOOST_AUTO_TEST_SUITE(marks_of_erased_models)

BOOST_DATA_TEST_CASE(
  a_listing_removes_marks_when_the_provider_they_wait_for_is_back, data::make({"rocksdb", "pmem"}),
  kind) {
  constexpr int count = 30;
  nodes_of_one_file c{{{"a", kind}, {"b", kind}, {"c", kind}}};
  auto all = c.run(abc);
  for (int i = 0; i < count; ++i)
    BOOST_REQUIRE(store_number(all.repository(), model_name(i), i));
  auto without = c.run(ab);
  std::uint64_t marked = 0;
  for (int i = 0; i < count; ++i) {
    auto erased = without.repository().erase(model_name(i)).result();
    marked += !erased || totals{without}.marks > marked;
  }
  BOOST_TEST(marked > 3u);
  BOOST_TEST(totals{without}.marks == marked);
  BOOST_TEST(totals{without}.models == 0u);
  auto listed = without.repository().list().get();
  BOOST_TEST(listed.found.empty());
  BOOST_TEST(listed.marks.size() == marked);
  BOOST_TEST(totals{without}.marks == marked);
  auto again = c.run(abc);
  BOOST_TEST(totals{again}.models > 0u); // at the one that was away
  // The providers learn of each other's views. A store that then comes first stays.
  BOOST_TEST(again.repository().list("of another name").get().found.empty());
  BOOST_REQUIRE(store_number(again.repository(), model_name(0), 77));
  BOOST_TEST(load_number(again.repository(), model_name(0)).value() == 77u);
  listed = again.repository().list().get();
  BOOST_TEST(listed.silent.empty());
  BOOST_TEST(listed.found.size() == 1u);
  BOOST_TEST(listed.marks.empty());
  BOOST_TEST(listed.swept.result().has_value());
  auto kept = load_number(again.repository(), model_name(0));
  BOOST_TEST_REQUIRE(kept.has_value());
  BOOST_TEST(*kept == 77u);
  BOOST_TEST(again.repository().erase(model_name(0)).result().has_value());
  totals left{again};
  BOOST_TEST(left.models == 0u);
  BOOST_TEST(left.marks == 0u);
  BOOST_TEST(left.descriptions_bytes == 0u);
  BOOST_TEST(again.repository().list().get().found.empty());
}

// A bucket of an older build has models that its file places elsewhere: there may be more, at
// providers that nobody knows any more.
BOOST_AUTO_TEST_CASE(a_mark_stays_while_it_is_not_known_who_may_have_the_name) {
  nodes_of_one_file c;
  {
    storage::rocksdb_bucket_options options;
    options.path = c.dir.path() + "/a";
    auto bucket = storage::open_rocksdb_bucket(options).value();
    for (int i = 0; i < 20; ++i)
      BOOST_REQUIRE(testing::store(*bucket, spec_of(model_name(i), {100}), 1).has_value());
  }
  BOOST_REQUIRE(c.run(abc).repository().list().get().found.size() == 20u);
  auto without = c.run(ab);
  BOOST_TEST(without.repository().erase(model_name(1)).result().has_value());
  BOOST_TEST(totals{without}.marks == 1u);
  auto again = c.run(abc);
  for (int i = 0; i < 2; ++i) {
    auto listed = again.repository().list().get();
    BOOST_TEST(listed.silent.empty());
    BOOST_TEST(listed.found.size() == 19u);
    BOOST_TEST(listed.marks.size() == 1u);
  }
  BOOST_TEST(totals{again}.marks == 1u);
}

// Nobody of the old group is left to tell where its models are.
BOOST_AUTO_TEST_CASE(a_group_replaced_at_once_is_empty_until_a_provider_of_it_is_back) {
  nodes_of_one_file c;
  auto before = c.run(ab);
  BOOST_REQUIRE(store_number(before.repository(), model_name(1), 1));
  auto after = c.run({{"c"}});
  auto missing = load_number(after.repository(), model_name(1));
  BOOST_REQUIRE(!missing);
  BOOST_TEST((missing.error().code() == errc::not_found), missing.error().to_string());
  BOOST_TEST(after.repository().list().get().found.empty());
  auto together = c.run(abc);
  BOOST_TEST(load_number(together.repository(), model_name(1)).value() == 1u);
}

BOOST_AUTO_TEST_SUITE_END()
