// Tests which requests a provider answers alone, by the views of its group that it keeps.
#include "store_fixture.hpp"

#include <millrace/tests/support/kept_log.hpp>

#include <boost/test/unit_test.hpp>

using namespace millrace;
using namespace millrace::actors;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

struct placed : store_fixture {
  millrace::group_member p{"p", "p", {}, {}, 1, false}, q{"q", "q", {}, {}, 1, false};
  group_history alone{"default", {{1, {p}}}, 1};
  group_history both{"default", {{1, {p}}, {2, {p, q}}}, 0};

  status tell(const group_history& views) {
    auto pending = ask(adopt_request{views});
    auto r = outcome<done_reply>(pending);
    return r ? status{} : r.error();
  }
  status tell_settled() {
    static_cast<void>(tell(both));
    both.settled = 2;
    return tell(both);
  }
  std::string name_at(const std::string& id) const {
    for (int i = 0;; ++i)
      if (auto name = "m" + std::to_string(i); home_of(name, both.views.back())->id == id)
        return name;
  }
  template <class Reply, class Request>
  errc code_of(Request request) {
    auto pending = ask(std::move(request));
    auto r = outcome<Reply>(pending);
    return r ? errc::ok : r.error().code();
  }
  errc describe(const std::string& name, std::uint64_t number) {
    return code_of<model_record>(describe_request{name, 0, {"default", number}});
  }
  // The bytes of a store that was asked for arrive.
  template <class Pending>
  errc finish(Pending& pending) {
    if (!fabric->waiting.empty())
      fabric->finish();
    sched.run();
    auto r = outcome<store_receipt>(pending);
    return r ? errc::ok : r.error().code();
  }
};

/// A provider that starts with a view of several providers, as its bucket kept it.
struct kept_view : placed {
  kept_view() {
    both.settled = 2;
    start_anew({p, q});
  }

  void start_anew(std::vector<millrace::group_member> file) {
    stop();
    tensor_store_deps deps{"p", "default", bucket, fabric, limits};
    deps.placement = std::make_shared<kept_placement>(
      kept_placement{"p", "default", std::move(file), false, "default", {both}});
    store = spawn_tensor_store(system, std::move(deps));
  }

  errc ask_alone() { return describe(name_at("p"), 0); }
  location where() {
    auto pending = ask(locate_request{"default", {}});
    return outcome<location>(pending).value();
  }
  views_compared compared() { return where().compared; }
  errc tell_that_asked(bool all) { return tell_that_asked(all, where().start); }
  errc tell_that_asked(bool all, std::uint64_t after_start) {
    return code_of<done_reply>(adopt_request{both, all, after_start});
  }
};

} // namespace

BOOST_AUTO_TEST_SUITE(views_of_a_provider)

BOOST_FIXTURE_TEST_CASE(views_that_peers_tell_are_bounded_and_can_be_read_again, placed) {
  std::size_t kept = 0;
  for (int g = 0; g < 8; ++g) {
    group_view large{1, {p}};
    for (int i = 0; i < 4000; ++i)
      large.members.push_back(
        {"q" + std::to_string(10'000 + i), std::string(100, 'n'), {}, {"a"}, 1, false});
    auto told = tell({"group-" + std::to_string(g), {large}, 1});
    BOOST_TEST((told.ok() || told.code() == errc::no_space), told.to_string());
    kept += told.ok();
  }
  BOOST_TEST((kept > 1u && kept < 8u));
  auto again =
    placement_at_start(*bucket, {"p", "p", "default", {p}, false}, std::chrono::seconds{10});
  BOOST_TEST_REQUIRE(again.has_value());
  BOOST_TEST(again->histories.size() == kept + 1);
}

BOOST_FIXTURE_TEST_CASE(a_store_under_an_older_view_is_not_published, placed) {
  auto pending = ask(request(name_at("p")));
  BOOST_TEST(tell(both).ok());
  BOOST_TEST((finish(pending) == errc::unsupported_version));
  // The views of the group remain.
  BOOST_TEST(bucket->stats().used_bytes < 4096u);
}

BOOST_FIXTURE_TEST_CASE(a_provider_answers_alone_only_for_what_no_other_one_may_have, placed) {
  auto here = name_at("p"), there = name_at("q");
  for (auto& name : {here, there}) {
    auto pending = ask(request(name));
    BOOST_TEST((finish(pending) == errc::ok));
  }
  BOOST_TEST(tell(both).ok());
  BOOST_TEST((describe(here, 0) == errc::unsupported_version)); // not settled
  BOOST_TEST((describe(here, 2) == errc::unsupported_version));
  BOOST_TEST(tell_settled().ok());
  BOOST_TEST((describe(here, 0) == errc::ok));
  BOOST_TEST((describe(there, 0) == errc::unsupported_version));
  BOOST_TEST((describe(there, 1) == errc::unsupported_version));
  BOOST_TEST((describe(there, 2) == errc::ok)); // the client has asked the other one
  auto wrong = request(there);
  wrong.by = {"default", 2};
  auto stored = ask(wrong);
  BOOST_TEST((finish(stored) == errc::unsupported_version));
  auto erased = ask(erase_request{there, {"default", 0}, false});
  BOOST_TEST((outcome<done_reply>(erased).error().code() == errc::unsupported_version));
  auto mark = ask(erase_request{here, {"default", 2}, true});
  BOOST_TEST(outcome<done_reply>(mark).has_value());
  BOOST_TEST((describe(here, 0) == errc::not_found));
  auto where = ask(locate_request{"default", here});
  BOOST_TEST(outcome<location>(where)->erased);
}

BOOST_FIXTURE_TEST_CASE(a_provider_does_not_answer_alone_before_views_were_compared, kept_view) {
  BOOST_TEST((compared() == views_compared::with_none));
  auto name = name_at("p");
  for (int i = 0; i < 2; ++i) {
    BOOST_TEST((ask_alone() == errc::unsupported_version));
    auto stored = ask(request(name));
    BOOST_TEST((finish(stored) == errc::unsupported_version));
    BOOST_TEST((code_of<done_reply>(erase_request{name}) == errc::unsupported_version));
    BOOST_TEST((code_of<done_reply>(pin_request{name}) == errc::unsupported_version));
  }
  // A client of an older version has asked those that it knows of.
  BOOST_TEST((describe(name, 2) == errc::not_found));
  auto used_bytes = bucket->stats().used_bytes;
  BOOST_TEST((tell_that_asked(true) == errc::ok));
  BOOST_TEST(bucket->stats().used_bytes == used_bytes); // nothing new to keep
  BOOST_TEST((compared() == views_compared::with_all));
  for (int i = 0; i < 3; ++i, pass(1min))
    BOOST_TEST((ask_alone() == errc::not_found));
}

BOOST_FIXTURE_TEST_CASE(an_answer_that_makes_the_client_ask_others_is_no_failure, kept_view) {
  auto failures = [&] {
    auto pending = ask(provider_status_request{});
    return outcome<provider_status>(pending).value().store.failures;
  };
  auto stored = ask(request(name_at("p")));
  BOOST_TEST((finish(stored) == errc::unsupported_version));
  BOOST_TEST(failures() == 0u);
  auto nameless = ask(request(""));
  BOOST_TEST((finish(nameless) == errc::invalid_argument));
  BOOST_TEST(failures() == 1u);
}

BOOST_FIXTURE_TEST_CASE(one_request_in_a_while_tries_again_to_ask_those_that_were_down, kept_view) {
  BOOST_TEST((tell_that_asked(false) == errc::ok));
  for (int round = 0; round < 3; ++round) {
    // Searches for other reasons need not ask everyone.
    BOOST_TEST((compared() == views_compared::with_all));
    for (int i = 0; i < 3; ++i)
      BOOST_TEST((ask_alone() == errc::not_found));
    pass(placement_keeper::compares_every);
    BOOST_TEST((compared() == views_compared::with_some));
    BOOST_TEST((ask_alone() == errc::unsupported_version));
    BOOST_TEST((compared() == views_compared::with_some)); // the client that was refused asks
    for (int i = 0; i < 3; ++i)
      BOOST_TEST((ask_alone() == errc::not_found));
    // It waited long for an answer. The time until the next try begins when it says so.
    pass(placement_keeper::compares_every - 1s);
    BOOST_TEST((tell_that_asked(false) == errc::ok));
    pass(placement_keeper::compares_every - 1s);
  }
  BOOST_TEST((tell_that_asked(true) == errc::ok));
  pass(placement_keeper::compares_every);
  BOOST_TEST((ask_alone() == errc::not_found));
}

BOOST_FIXTURE_TEST_CASE(
  a_provider_says_that_it_answers_without_a_comparison_or_by_a_newer_view, kept_view) {
  kept_log log;
  auto file = std::vector{p, q};
  for (auto& m : file)
    m.id.clear();
  start_anew(file);
  for (int i = 0; i < 2; ++i)
    BOOST_TEST((tell_that_asked(false) == errc::ok));
  BOOST_TEST(log.count("answers by the views that it had before its start") == 1u);
  BOOST_TEST(log.count("provider=p group=default") == 1u);
  BOOST_TEST(log.count("the file of a provider is older") == 0u);
  both.views.push_back({3, {p}});
  for (auto settled : {0, 3}) {
    both.settled = settled;
    BOOST_TEST((tell_that_asked(true) == errc::ok));
  }
  BOOST_TEST(log.count("the file of a provider is older than the view that its group uses") == 1u);
}

// The group may have changed between the questions and the start.
BOOST_FIXTURE_TEST_CASE(a_comparison_from_before_the_start_does_not_count, kept_view) {
  for (auto all : {true, false}) {
    auto before = where().start;
    start_anew({p, q});
    BOOST_TEST(where().start != before);
    for (auto start : {before, std::uint64_t{0}}) { // an older client names none
      BOOST_TEST((tell_that_asked(all, start) == errc::ok));
      BOOST_TEST((compared() == views_compared::with_none));
      BOOST_TEST((ask_alone() == errc::unsupported_version));
    }
  }
  BOOST_TEST((tell_that_asked(true) == errc::ok));
  BOOST_TEST((ask_alone() == errc::not_found));
}

BOOST_FIXTURE_TEST_CASE(views_that_lack_a_known_one_are_refused, placed) {
  BOOST_TEST(tell_settled().ok());
  BOOST_TEST((tell(alone).code() == errc::busy));
  group_history other{"default", {{1, {p}}, {3, {p}}}, 0};
  BOOST_TEST((tell(other).code() == errc::busy));
  group_history others{"default", {{1, {q}}}, 0};
  BOOST_TEST((tell(others).code() == errc::invalid_argument));
  both.views.push_back({3, {p}});
  both.settled = 0;
  BOOST_TEST(tell(both).ok());
}

BOOST_FIXTURE_TEST_CASE(what_a_provider_keeps_for_itself_is_no_model, placed) {
  BOOST_TEST(tell_settled().ok());
  BOOST_TEST(bucket->stats().models == 0u);
  auto listed = ask(list_request{});
  BOOST_TEST(outcome<model_list>(listed)->models.empty());
  auto stored = ask(request("\x01placement"));
  BOOST_TEST((finish(stored) == errc::invalid_argument));
  auto used_bytes = bucket->stats().used_bytes;
  placement_claim by{"default", 2};
  for (std::string name : {"\x01placement", "\x01x"}) {
    BOOST_TEST((describe(name, 2) == errc::not_found));
    for (auto mark : {true, false})
      BOOST_TEST((code_of<done_reply>(erase_request{name, by, mark}) == errc::not_found));
    BOOST_TEST((code_of<done_reply>(pin_request{name, false, by}) == errc::not_found));
    BOOST_TEST((code_of<location>(locate_request{"default", name}) == errc::not_found));
  }
  BOOST_TEST(bucket->stats().models == 0u);
  BOOST_TEST(bucket->stats().used_bytes == used_bytes);
  auto kept = placement_at_start(*bucket, {{}, "renamed", "default", {p, q}, true}, 1s);
  BOOST_TEST_REQUIRE(kept.has_value());
  BOOST_TEST(kept->id == "p");
  BOOST_TEST((kept->histories.front() == both));
}

BOOST_FIXTURE_TEST_CASE(a_bucket_whose_placement_cannot_be_read_is_refused_with_a_remedy, placed) {
  model_spec spec;
  spec.name = "\x01placement";
  for (std::string key : {"other", "placement"}) {
    spec.metadata = {{key, "junk"}};
    store_empty(*bucket, spec, [](const result<void>& stored) { BOOST_TEST(stored.has_value()); });
    auto kept = placement_at_start(*bucket, {"p", "p", "default", {p}, false}, 1s);
    BOOST_TEST_REQUIRE(!kept.has_value());
    BOOST_TEST((kept.error().code() == errc::corrupt_data));
    BOOST_TEST(kept.error().detail().find("millrace models salvage") != std::string::npos);
  }
}

BOOST_AUTO_TEST_SUITE_END()
