// Requests that take several steps end by one deadline, and say what they have done.
// The providers are scripted: some answer late, or never.
#include <millrace/core/placement.hpp>
#include <millrace/runtime/client/client.hpp>
#include <millrace/tests/support/scripted_service.hpp>

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

using namespace millrace;
using namespace std::chrono_literals;
using actors::location;

namespace {

config::settings with_timeout(std::uint32_t ms) {
  config::settings s;
  s.client.request_timeout_ms = ms;
  return s;
}

/// Two providers of one group, of which "q" came later.
struct two_providers {
  testing::scripted_service service{{testing::listed("p"), testing::listed("q")}};
  std::vector<group_view> views{{1, {member("p")}}, {2, {member("p"), member("q")}}};
  std::vector<std::byte> bytes = std::vector<std::byte>(8);
  tensor_view tensor{{"t", dtype::u8, {8}}, bytes.data(), {}};

  two_providers() {
    service.on_for<actors::locate_request>(
      [this](auto& name, auto&, auto reply) { reply(says(name)); });
  }

  millrace::group_member member(const std::string& name) const {
    millrace::group_member m;
    m.id = m.name = name;
    m.node = "n0";
    m.addresses = {service.address()};
    return m;
  }

  location says(const std::string& name) const {
    location where;
    where.id = name;
    where.history = {"default", views, 2};
    return where;
  }

  // "p" has an older version of what is placed at "q".
  location says_older_at_p(const std::string& name) const {
    auto where = says(name);
    where.has_model = true;
    where.view = 1;
    where.version = where.stored_at_ns = name == "p" ? 1 : 2;
    return where;
  }

  // Returns a name that is placed there.
  std::string name_at_q() const {
    for (int i = 0;; ++i)
      if (auto name = fmt::format("m{}", i); home_of(name, views[1])->id == "q")
        return name;
  }

  client asks(std::uint32_t timeout_ms) const {
    return client::connect(service.address(), with_timeout(timeout_ms));
  }
};

/// Two providers that keep checkpoints.
struct two_keepers {
  testing::scripted_service service{{testing::listed("p", true), testing::listed("q", true)}};

  client asks(std::uint32_t timeout_ms) const {
    return client::connect(service.address(), with_timeout(timeout_ms));
  }
};

checkpoint_summary with_step(const std::string& model, std::uint64_t step) {
  checkpoint_summary m;
  m.model = model;
  m.complete_steps = {step};
  return m;
}

actors::checkpoint_list only(checkpoint_summary model) {
  actors::checkpoint_list page;
  page.models.push_back(std::move(model));
  page.more = false;
  return page;
}

model_summary summary(const std::string& name, bool erased = false) {
  model_summary m;
  m.name = name;
  m.version = m.view = 1;
  m.erased = erased;
  return m;
}

bool has_words(const status& why, const std::string& words) {
  return why.detail().find(words) != std::string::npos;
}

} // namespace

BOOST_FIXTURE_TEST_SUITE(deadlines, two_providers)

// Without one deadline for all pages this listing does not end.
BOOST_AUTO_TEST_CASE(a_listing_ends_while_a_provider_has_ever_more_pages) {
  std::atomic<std::uint64_t> count = 0;
  service.on_for<actors::list_request>([&](auto& name, auto& request, auto reply) {
    actors::model_list page;
    if (name == "q")
      page.models = {summary("of q")};
    else
      for (std::uint32_t i = 0; i < request.count_max; ++i)
        page.models.push_back(summary(fmt::format("of p {:012}", ++count)));
    std::this_thread::sleep_for(20ms);
    reply(page);
  });
  auto listed = asks(1000).repository().list().get();
  BOOST_REQUIRE(listed.silent.size() == 1u);
  BOOST_TEST(listed.silent[0].name == "p");
  BOOST_TEST((listed.silent[0].why.code() == errc::deadline_exceeded));
  BOOST_TEST(listed.found.size() > 1000u);
  BOOST_TEST(listed.found.back().name == "of q");
}

// A search asks everyone first, and the stuck one would take all of its time.
BOOST_AUTO_TEST_CASE(a_listing_has_what_the_others_keep_while_a_provider_is_stuck) {
  service.on_for<actors::locate_request>([this](auto& name, auto&, auto reply) {
    if (name == "p")
      reply(says(name));
  });
  service.on_for<actors::list_request>([](auto& name, auto&, auto reply) {
    if (name == "p")
      reply(actors::model_list{{summary("of p")}});
  });
  auto listed = asks(1000).repository().list().get();
  BOOST_REQUIRE(listed.found.size() == 1u);
  BOOST_TEST(listed.found[0].name == "of p");
  BOOST_REQUIRE(listed.silent.size() == 1u);
  BOOST_TEST(listed.silent[0].name == "q");
  BOOST_TEST((listed.silent[0].why.code() == errc::deadline_exceeded));
}

BOOST_AUTO_TEST_CASE(a_listing_does_not_wait_for_the_marks_that_it_removes) {
  service.on_for<actors::list_request>([](auto& name, auto&, auto reply) {
    actors::model_list marks;
    if (name == "p")
      marks.models = {summary("m1", true), summary("m2", true), summary("m3", true)};
    reply(marks);
  });
  service.on<actors::erase_request>([](auto&, auto) {}); // never answered
  auto c = asks(1000);
  auto listed = c.repository().list().get();
  BOOST_TEST(listed.silent.empty());
  BOOST_TEST(listed.marks.empty());
  BOOST_TEST(!listed.swept.ready());
  auto swept = listed.swept.result();
  BOOST_REQUIRE(!swept);
  BOOST_TEST((swept.error().code() == errc::deadline_exceeded), swept.error().to_string());
  BOOST_TEST(service.asked<actors::erase_request>() == 1u);
}

BOOST_AUTO_TEST_CASE(marks_are_left_when_their_provider_is_not_there) {
  service.on_for<actors::list_request>([](auto&, auto&, auto reply) {
    reply(actors::model_list{{summary("m1", true), summary("m2", true)}});
  });
  service.on<actors::erase_request>(
    [](auto&, auto reply) { reply(fail(errc::unavailable, "it is down")); });
  auto c = asks(60'000);
  auto swept = c.repository().list().get().swept.result();
  BOOST_REQUIRE(!swept);
  BOOST_TEST((swept.error().code() == errc::unavailable), swept.error().to_string());
  BOOST_TEST(service.asked<actors::erase_request>() == 1u);
}

BOOST_AUTO_TEST_CASE(an_erasure_ends_by_its_deadline_and_says_what_it_has_removed) {
  service.on_for<actors::locate_request>(
    [this](auto& name, auto&, auto reply) { reply(says_older_at_p(name)); });
  service.on_for<actors::erase_request>([](auto& name, auto& request, auto reply) {
    if (request.by.number == 0)
      return reply(fail(errc::unsupported_version, "others must be asked"));
    std::this_thread::sleep_for(100ms);
    if (name == "p")
      reply(actors::done_reply{});
  });
  auto erased = asks(1500).repository().erase(name_at_q()).result();
  BOOST_REQUIRE(!erased);
  auto& why = erased.error();
  BOOST_TEST((why.code() == errc::deadline_exceeded), why.to_string());
  BOOST_TEST(has_words(why, "provider q, after 1 of 2 were removed"), why.to_string());
}

BOOST_AUTO_TEST_CASE(an_erasure_that_waits_for_a_search_says_that_it_has_removed_nothing) {
  service.on_for<actors::locate_request>([](auto&, auto&, auto) {});
  service.on<actors::erase_request>(
    [](auto&, auto reply) { reply(fail(errc::unsupported_version, "others must be asked")); });
  auto erased = asks(1000).repository().erase("m").result();
  BOOST_REQUIRE(!erased);
  BOOST_TEST((erased.error().code() == errc::deadline_exceeded), erased.error().to_string());
  BOOST_TEST(has_words(erased.error(), "nothing was removed"), erased.error().to_string());
}

// The client's own timeout is a minute, which the removal of the older version must not take.
BOOST_AUTO_TEST_CASE(a_store_ends_by_its_deadline_and_says_that_an_older_version_is_left) {
  auto model = name_at_q();
  service.on_for<actors::locate_request>(
    [this](auto& name, auto&, auto reply) { reply(says_older_at_p(name)); });
  service.on_for<actors::store_request>([](auto& name, auto& request, auto reply) {
    if (request.by.number == 0)
      return reply(fail(errc::unsupported_version, "others must be asked"));
    store_receipt r;
    r.model = request.spec.name;
    r.size_bytes = 8;
    r.provider = name;
    reply(r);
  });
  service.on<actors::erase_request>([](auto&, auto) {}); // never answered
  auto began = steady_clock::now();
  store_options options;
  options.timeout = 300ms;
  auto c = asks(60'000);
  auto stored = c.repository().store(model, {tensor}, options).result();
  BOOST_REQUIRE(!stored);
  auto& why = stored.error();
  BOOST_TEST((why.code() == errc::deadline_exceeded), why.to_string());
  BOOST_TEST(has_words(why, "is stored at provider q"), why.to_string());
  BOOST_TEST(has_words(why, "store it again"), why.to_string());
  BOOST_TEST(has_words(why, "at provider p"), why.to_string());
  BOOST_TEST((steady_clock::now() - began < 30s));
}

BOOST_AUTO_TEST_CASE(a_load_by_name_ends_by_its_own_timeout) {
  service.on<actors::describe_request>([](auto&, auto) {}); // never answered
  auto began = steady_clock::now();
  auto c = asks(60'000);
  auto loaded =
    c.repository().load("m", std::vector<std::string>{}, bytes, {.timeout = 300ms}).result();
  BOOST_REQUIRE(!loaded);
  BOOST_TEST((loaded.error().code() == errc::deadline_exceeded), loaded.error().to_string());
  BOOST_TEST((steady_clock::now() - began < 30s));
}

BOOST_AUTO_TEST_CASE(the_second_request_of_a_load_by_name_gets_what_is_left) {
  service.on<actors::describe_request>([](auto& request, auto reply) {
    std::this_thread::sleep_for(100ms);
    model_record r;
    r.spec.name = request.model;
    r.spec.tensors.tensors = {{"t", dtype::u8, {8}}};
    r.version = 1;
    reply(r);
  });
  std::atomic<std::uint32_t> timeout_ms = 0;
  service.on<actors::load_request>([&](auto& request, auto reply) {
    timeout_ms = request.timeout_ms;
    reply(fail(errc::not_found, "it keeps no bytes"));
  });
  auto c = asks(60'000);
  static_cast<void>(
    c.repository().load("m", std::vector<std::string>{}, bytes, {.timeout = 20s}).result());
  BOOST_TEST(timeout_ms > 0u);
  BOOST_TEST(timeout_ms <= 19'900u);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(deadlines_of_checkpoints, two_keepers)

BOOST_AUTO_TEST_CASE(a_listing_ends_while_a_provider_has_ever_more_pages) {
  std::atomic<std::uint64_t> count = 0;
  service.on_for<actors::list_checkpoints_request>([&](auto& name, auto&, auto reply) {
    if (name == "q")
      return reply(only(with_step("of q", 1)));
    auto page = only(with_step(fmt::format("of p {:012}", ++count), 1));
    page.more = true;
    std::this_thread::sleep_for(20ms);
    reply(page);
  });
  auto listed = asks(1000).checkpoints().list().get();
  BOOST_REQUIRE(listed.silent.size() == 1u);
  BOOST_TEST(listed.silent[0].name == "p");
  BOOST_TEST((listed.silent[0].why.code() == errc::deadline_exceeded));
  BOOST_TEST(listed.found.size() > 2u);
  BOOST_TEST(listed.found.back().model == "of q");
}

// The stuck one would take all of the time in which the other one can answer.
BOOST_AUTO_TEST_CASE(a_step_is_described_by_the_provider_that_has_it_while_another_one_is_stuck) {
  service.on_for<actors::list_checkpoints_request>([](auto& name, auto&, auto reply) {
    if (name == "p")
      reply(only(with_step("m", 7)));
  });
  auto described = asks(1000).checkpoints().describe("m", 7).result();
  BOOST_REQUIRE(described.has_value());
  BOOST_TEST(described->complete_steps == std::vector<std::uint64_t>{7});
}

BOOST_AUTO_TEST_CASE(a_verification_gets_what_is_left_of_its_time) {
  service.on<actors::list_checkpoints_request>([](auto&, auto reply) {
    std::this_thread::sleep_for(100ms);
    reply(only(with_step("m", 7)));
  });
  std::atomic<std::uint32_t> timeout_ms = 0;
  service.on<actors::verify_request>([&](auto& request, auto reply) {
    timeout_ms = request.timeout_ms;
    reply(verify_receipt{});
  });
  auto c = asks(60'000);
  BOOST_TEST(c.checkpoints().verify("m", 0, 7, 20s).result().has_value());
  BOOST_TEST(timeout_ms > 0u);
  BOOST_TEST(timeout_ms <= 19'900u);
}

BOOST_AUTO_TEST_CASE(an_erasure_ends_by_its_deadline_and_says_where_a_copy_is_left) {
  service.on<actors::list_checkpoints_request>(
    [](auto&, auto reply) { reply(only(with_step("m", 7))); });
  service.on<actors::erase_checkpoint_request>([](auto&, auto) {}); // never answered
  auto erased = asks(1000).checkpoints().erase("m").result();
  BOOST_REQUIRE(!erased);
  BOOST_TEST((erased.error().code() == errc::deadline_exceeded), erased.error().to_string());
  BOOST_TEST(has_words(erased.error(), "removing m at provider"), erased.error().to_string());
  BOOST_TEST(service.asked<actors::erase_checkpoint_request>() == 1u);
}

// However long a connection may take.
BOOST_AUTO_TEST_CASE(calls_end_by_their_deadline_though_no_node_says_which_providers_there_are) {
  auto patient = with_timeout(100);
  patient.client.connect_timeout_ms = 3'600'000;
  auto c = client::connect(service.address(), patient);
  service.on<actors::directory_request>([](auto&, auto) {}); // never answered
  service.on<actors::list_checkpoints_request>([](auto&, auto) {});
  std::vector<std::byte> bytes(8);
  tensor_view tensor{{"t", dtype::u8, {8}}, bytes.data(), {}};
  auto kept = c.checkpoints();
  BOOST_TEST(kept.list().wait_for(60s));
  BOOST_TEST(kept.describe("m").wait_for(60s));
  BOOST_TEST(kept.describe_shard("m", 0).wait_for(60s));
  BOOST_TEST(kept.erase("m").wait_for(60s));
  BOOST_TEST(kept.load("m", 0, {}, {tensor}).wait_for(60s));
  BOOST_TEST(kept.load_global("m", {{.into = tensor}}).wait_for(60s));
  BOOST_TEST(kept.verify("m", 0, 1).wait_for(60s));
  BOOST_TEST(kept.repack().wait_for(60s));
  checkpoint_options options;
  options.model = "m";
  BOOST_TEST(c.checkpointer(options, {tensor}).wait_for(60s));
}

BOOST_AUTO_TEST_SUITE_END()
