// Takes a provider out, changes models without it, and starts it again with its old file. The first
// request to it must find what has changed.
#include "nodes_of_one_file.hpp"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <chrono>
#include <vector>

using namespace millrace;
using namespace millrace::testing;
using namespace std::chrono_literals;
namespace data = boost::unit_test::data;

namespace {

const provider_list ab = {{"a"}, {"b"}}, abc = {{"a"}, {"b"}, {"c"}};
constexpr int models = 30;

struct cluster : nodes_of_one_file {
  /// Returns the repository of a client that has asked nothing yet.
  repository with(const provider_list& providers) const {
    return place.with(providers).repository();
  }
};

/// A cluster from which provider c was taken out. Names that it has were erased or stored anew
/// meanwhile. It is back, with the file that it had before, which the other nodes do not have.
struct returned : cluster {
  std::vector<int> erased, stored; // numbers of names that c has a version of

  returned() {
    start_all(abc);
    for (int i = 0; i < models; ++i)
      BOOST_REQUIRE(store_number(with(abc), model_name(i), 1000 + i));
    start_all(ab);
    auto without = with(ab);
    for (int i = 0; i < models; ++i) {
      if (load_number(without, model_name(i)))
        continue;
      auto& changed = erased.size() > stored.size() ? stored : erased;
      changed.push_back(i);
      if (&changed == &stored)
        BOOST_REQUIRE(store_number(without, model_name(i), 2000 + i));
      else
        BOOST_REQUIRE(!without.erase(model_name(i)).result()); // "it is erased there from now on"
    }
    BOOST_REQUIRE(stored.size() > 1);
    start(abc, "c");
  }
};

/// The same with a client that knows the view without c. The other providers went down then.
struct returned_alone : returned {
  client known = place.with(abc);
  repository knows = known.repository();

  returned_alone() {
    nodes["c"].reset();
    BOOST_REQUIRE(load_number(knows, model_name(stored[0])).has_value());
    stop_others();
    start(abc, "c");
    wait_for("on-c");
  }
  // A client does not try at once to reach a node that was down.
  void wait_for(const std::string& node) {
    auto deadline = steady_clock::now() + 60s;
    auto answers = [&] {
      auto all = known.status().get();
      return std::ranges::any_of(all, [&](auto& one) { return one && one->node == node; });
    };
    while (!answers())
      BOOST_REQUIRE(steady_clock::now() < deadline);
  }
  void stop_others() {
    nodes["a"].reset();
    nodes["b"].reset();
  }
  void start_others() {
    start(ab, "a");
    start(ab, "b");
    wait_for("on-a");
    wait_for("on-b");
  }
};

template <class T>
bool is_missing(const result<T>& r) {
  return !r && r.error().code() == errc::not_found;
}

template <class T>
std::string outcome_of(const result<T>& r) {
  return r ? "it worked" : r.error().to_string();
}

} // namespace

BOOST_AUTO_TEST_SUITE(returned_provider)

BOOST_AUTO_TEST_CASE(an_erased_model_is_not_loaded_from_it) {
  returned c;
  auto found = load_number(c.with(abc), model_name(c.erased[0]));
  BOOST_TEST(is_missing(found), outcome_of(found));
}

BOOST_AUTO_TEST_CASE(a_model_that_was_stored_anew_is_loaded_as_it_is_now) {
  returned c;
  auto found = load_number(c.with(abc), model_name(c.stored[0]));
  BOOST_TEST_REQUIRE(found.has_value(), outcome_of(found));
  BOOST_TEST(*found == 2000u + c.stored[0]);
}

BOOST_AUTO_TEST_CASE(an_erased_model_is_neither_described_nor_pinned_nor_erased_at_it) {
  for (int what = 0; what < 3; ++what) {
    returned c;
    auto r = c.with(abc);
    auto name = model_name(c.erased[0]);
    auto missing = what == 0 ? is_missing(r.describe(name).result())
      : what == 1            ? is_missing(r.pin(name, true).result())
                             : is_missing(r.erase(name).result());
    BOOST_TEST(missing, "request " << what);
  }
}

BOOST_AUTO_TEST_CASE(a_store_through_it_is_newer_than_the_mark_of_an_erasure) {
  returned c;
  auto name = model_name(c.erased[0]);
  auto stored = store_number(c.with(abc), name, 3000);
  BOOST_TEST_REQUIRE(stored.has_value(), outcome_of(stored));
  for (auto& file : {abc, ab}) {
    auto found = load_number(c.with(file), name);
    BOOST_TEST_REQUIRE(found.has_value(), outcome_of(found));
    BOOST_TEST(*found == 3000u);
    BOOST_TEST(c.with(file).list(name).get().found.size() == 1u);
  }
  c.start(abc, "a");
  c.start(abc, "b");
  auto found = load_number(c.with(abc), name);
  BOOST_TEST_REQUIRE(found.has_value(), outcome_of(found));
  BOOST_TEST(*found == 3000u);
}

// Also through the provider's own node, whose client has the old file.
BOOST_AUTO_TEST_CASE(every_name_is_right_from_the_first_request_on) {
  for (auto own : {false, true}) {
    returned c;
    auto r = own ? c.nodes["c"]->client().repository() : c.with(abc);
    for (auto i : c.erased) {
      auto found = load_number(r, model_name(i));
      BOOST_TEST(is_missing(found), model_name(i) << ": " << outcome_of(found));
    }
    for (auto i : c.stored) {
      auto found = load_number(r, model_name(i));
      BOOST_TEST_REQUIRE(found.has_value(), outcome_of(found));
      BOOST_TEST(*found == 2000u + i);
    }
  }
}

template <class T>
bool is_out_of_reach(const result<T>& r) {
  auto names = [&](const char* text) { return r.error().detail().find(text) != std::string::npos; };
  return !r && r.error().code() == errc::unavailable &&
    (names("provider a of group") || names("provider b of group"));
}

BOOST_AUTO_TEST_CASE(a_client_that_knows_the_newer_view_does_not_accept_the_older_one) {
  returned_alone c;
  for (auto name : {model_name(c.erased[0]), model_name(c.stored[0])}) {
    auto loaded = load_number(c.knows, name);
    BOOST_TEST(is_out_of_reach(loaded), outcome_of(loaded));
    auto stored = store_number(c.knows, name, 3000);
    BOOST_TEST(is_out_of_reach(stored), outcome_of(stored));
    auto erased = c.knows.erase(name).result();
    BOOST_TEST(is_out_of_reach(erased), outcome_of(erased));
  }
  c.start_others();
  auto gone = load_number(c.knows, model_name(c.erased[0]));
  BOOST_TEST(is_missing(gone), outcome_of(gone));
  auto found = load_number(c.knows, model_name(c.stored[0]));
  BOOST_TEST_REQUIRE(found.has_value(), outcome_of(found));
  BOOST_TEST(*found == 2000u + c.stored[0]);
  auto stored = store_number(c.knows, model_name(c.erased[0]), 3000);
  BOOST_TEST_REQUIRE(stored.has_value(), outcome_of(stored));
  BOOST_TEST(load_number(c.with(abc), model_name(c.erased[0])).value() == 3000u);
}

// A limit of decision 014: only those that are down know that these names were changed. Stores of
// other names stay.
BOOST_AUTO_TEST_CASE(a_store_while_those_that_know_the_newer_view_are_down_is_older_than_theirs) {
  returned_alone c;
  auto erased = model_name(c.erased[0]), stored = model_name(c.stored[0]);
  std::string other;
  auto r = c.with(abc);
  for (auto& name : {erased, stored})
    BOOST_TEST(store_number(r, name, 3000).has_value());
  for (int i = models; other.empty(); ++i)
    if (store_number(r, model_name(i), 3000))
      other = model_name(i);
  c.start_others();
  for (auto& file : {ab, abc}) {
    auto gone = load_number(c.with(file), erased), found = load_number(c.with(file), stored);
    BOOST_TEST(is_missing(gone), outcome_of(gone));
    BOOST_TEST_REQUIRE(found.has_value(), outcome_of(found));
    BOOST_TEST(*found == 2000u + c.stored[0]);
    BOOST_TEST(load_number(c.with(file), other).value() == 3000u);
  }
}

// Nothing says that the one that is down has changed anything.
BOOST_AUTO_TEST_CASE(a_provider_that_restarts_while_another_one_is_down_serves_its_names) {
  cluster c;
  c.start_all(ab);
  for (int i = 0; i < models; ++i)
    BOOST_REQUIRE(store_number(c.with(ab), model_name(i), 1000 + i));
  c.nodes["a"].reset();
  c.start(ab, "b");
  int found = 0;
  for (auto r : {c.with(ab), c.nodes["b"]->client().repository()})
    for (int i = 0; i < models; ++i) {
      auto value = load_number(r, model_name(i));
      auto stored = store_number(r, model_name(i), 2000 + i);
      BOOST_TEST(value.has_value() == stored.has_value(), model_name(i));
      found += value.has_value();
      if (value)
        continue;
      BOOST_TEST((value.error().code() == errc::unavailable), outcome_of(value));
      BOOST_TEST((stored.error().code() == errc::unavailable), outcome_of(stored));
    }
  BOOST_TEST((found > models / 3 && found < 2 * models));
  c.start(ab, "a");
  for (int i = 0; i < models; ++i) {
    auto value = load_number(c.with(ab), model_name(i));
    BOOST_TEST(value.has_value(), outcome_of(value));
  }
}

BOOST_AUTO_TEST_CASE(a_provider_that_is_alone_answers_after_a_restart) {
  cluster c;
  const provider_list a = {{"a"}};
  c.start_all(a);
  BOOST_REQUIRE(store_number(c.with(a), model_name(1), 1));
  c.start(a, "a");
  BOOST_TEST(load_number(c.with(a), model_name(1)).value() == 1u);
}

BOOST_AUTO_TEST_SUITE_END()
