// Tests the data server's actor through sessions: who may write, publish and unload a set, and what
// becomes of the sets of a peer that is gone.
#include "data_world.hpp"

#include <boost/test/unit_test.hpp>

using namespace millrace;
using namespace millrace::actors;
using namespace millrace::testing;

namespace {

reserve_set_request kept_while_used(const std::string& name) {
  auto out = some_set(name, 100, 1);
  out.set.while_used = true;
  return out;
}

constexpr std::uint64_t region = heap_data_memory::region_bytes;

// A set of a million samples, of which the memory keeps some.
reserve_set_request some_window(const std::string& name, std::uint64_t window_bytes) {
  auto out = some_set(name, 1'000'000, 1);
  out.set.window_bytes = window_bytes;
  return out;
}

struct window_data_world : data_world {
  // Returns the lease of a window that is there.
  std::uint64_t open_window() {
    auto reserved = ask(some_window("w", region)).value();
    BOOST_TEST(ask(publish_set_request{reserved.number}).has_value());
    return ask(open_set_request{"w"}).value().lease;
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(data_servers, window_data_world)

BOOST_AUTO_TEST_CASE(a_set_is_reserved_published_opened_and_unloaded) {
  auto reserved = ask(some_set("s", 2000, 7));
  BOOST_TEST_REQUIRE(reserved.has_value());
  BOOST_TEST(!reserved->exists);
  BOOST_TEST(reserved->regions.size() == 2u);
  BOOST_TEST(size_bytes(reserved->regions[0]) == region);
  BOOST_TEST(size_bytes(reserved->regions[1]) == reserved->set.size_bytes - region);
  BOOST_TEST((reserved->regions[0].allows == access_mode::write));
  BOOST_TEST(reserved->set.owner == "user 1000");
  BOOST_TEST(validate(reserved->set).ok());
  BOOST_TEST((refusal(open_set_request{"s"}) == errc::not_found));
  BOOST_TEST((refusal(some_set("s", 2000, 7)) == errc::busy));
  auto published = ask(publish_set_request{reserved->number});
  BOOST_TEST_REQUIRE(published.has_value());
  BOOST_TEST((published.value() == reserved->set));
  // The memory cannot be written any more.
  BOOST_TEST(!transport::find_region(
                reserved->regions[0].region, reserved->regions[0].key, access_mode::write)
                .has_value());
  BOOST_TEST((refusal(publish_set_request{reserved->number}) == errc::not_found));
  auto again = ask(some_set("s", 2000, 7), other);
  BOOST_TEST_REQUIRE(again.has_value());
  BOOST_TEST(again->exists);
  BOOST_TEST((again->set == *published));
  BOOST_TEST(again->regions.empty());
  BOOST_TEST((refusal(some_set("s", 2000, 8), other) == errc::already_exists));
  auto opened = ask(open_set_request{"s"}, other);
  BOOST_TEST_REQUIRE(opened.has_value());
  BOOST_TEST_REQUIRE(opened->regions.size() == 2u);
  BOOST_TEST((opened->regions[0].memory.allows == access_mode::read));
  BOOST_TEST(opened->regions[0].slot != opened->regions[1].slot);
  BOOST_TEST(ask(list_sets_request{"s", {}, 0}).value().sets.size() == 1u);
  BOOST_TEST(ask(list_sets_request{"t", {}, 0}).value().sets.empty());
  BOOST_TEST((refusal(unload_set_request{"s", {}}, other) == errc::permission_denied));
  BOOST_TEST((refusal(unload_set_request{"s", {}}) == errc::ok));
  BOOST_TEST((refusal(unload_set_request{"s", {}}) == errc::not_found));
  BOOST_TEST(used() == 2 * region); // a reader has it
  auto& word = bytes.held->words[opened->regions[0].slot];
  BOOST_TEST(word == opened->regions[0].generation);
  BOOST_TEST((refusal(close_set_request{opened->lease}) == errc::not_found)); // another's
  BOOST_TEST((refusal(close_set_request{opened->lease}, other) == errc::ok));
  settle();
  BOOST_TEST(used() == 0u);
  // The bytes are still there, until another set gets the memory.
  BOOST_TEST(word == opened->regions[0].generation);
  BOOST_TEST((refusal(some_set("t", 4000, 1)) == errc::ok));
  BOOST_TEST(word > opened->regions[0].generation);
}

BOOST_AUTO_TEST_CASE(a_peer_that_is_gone_gives_up_what_it_writes_and_what_it_reads) {
  BOOST_TEST_REQUIRE(ask(some_set("half", 100, 1), other).has_value());
  auto reserved = ask(some_set("s", 100, 2));
  BOOST_TEST_REQUIRE(ask(publish_set_request{reserved.value().number}).has_value());
  BOOST_TEST_REQUIRE(ask(open_set_request{"s"}, other).has_value());
  BOOST_TEST(used() == 2 * region);
  lose(other);
  BOOST_TEST(used() == region);
  BOOST_TEST((refusal(some_set("half", 100, 1)) == errc::ok));
  BOOST_TEST((refusal(unload_set_request{"s", {}}) == errc::ok));
  settle();
  BOOST_TEST(used() == region); // that of "half"
}

BOOST_AUTO_TEST_CASE(a_reservation_can_be_given_up) {
  auto reserved = ask(some_set("s", 3000, 1));
  BOOST_TEST_REQUIRE(reserved.has_value());
  BOOST_TEST((refusal(close_set_request{reserved->number}) == errc::ok));
  settle();
  BOOST_TEST(used() == 0u);
  BOOST_TEST((refusal(some_set("s", 3000, 1)) == errc::ok));
}

// Its client has waited for the publishing as long as it may, and gives the set up.
BOOST_AUTO_TEST_CASE(a_set_that_is_given_up_while_it_is_published_is_no_set) {
  auto reserved = ask(some_set("s", 2000, 7));
  BOOST_TEST_REQUIRE(reserved.has_value());
  auto held = hold_mover();
  auto publish =
    encode_request<data_service>(data_server_of_node, publish_set_request{reserved->number});
  auto number = bring(*channel, publish);
  run();
  BOOST_TEST((refusal(close_set_request{reserved->number}) == errc::not_found));
  BOOST_TEST((refusal(unload_set_request{"s", {}}) == errc::busy));
  BOOST_TEST((refusal(unload_set_request{"s", reserved->set.id}) == errc::ok));
  held = nullptr;
  settle();
  BOOST_TEST_REQUIRE(channel->replies.contains(number));
  auto published = decode_reply<set_info>(channel->replies[number]);
  BOOST_TEST_REQUIRE(!published.has_value());
  BOOST_TEST((published.error().code() == errc::invalid_argument), published.error().to_string());
  BOOST_TEST((refusal(open_set_request{"s"}) == errc::not_found));
  BOOST_TEST(used() == 0u);
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_is_refused) {
  auto large = ask(some_set("large", 5000, 1));
  BOOST_TEST_REQUIRE(!large.has_value());
  BOOST_TEST((large.error().code() == errc::no_space));
  BOOST_TEST(
    large.error().detail().find("data.capacity") != std::string::npos, large.error().detail());
  auto bad = some_set("bad", 10, 1);
  bad.set.fields.clear();
  BOOST_TEST((refusal(bad) == errc::invalid_argument));
  bad = some_set("", 10, 1);
  BOOST_TEST((refusal(bad) == errc::invalid_argument));
  BOOST_TEST((refusal(some_set("huge", std::uint64_t{1} << 62, 1)) == errc::invalid_argument));
  // What a client says of places and owners does not count.
  auto lie = some_set("lie", 10, 1);
  lie.set.owner = "user 0";
  lie.set.size_bytes = 1;
  lie.set.region_bytes = 5;
  auto reserved = ask(lie);
  BOOST_TEST_REQUIRE(reserved.has_value());
  BOOST_TEST(reserved->set.owner == "user 1000");
  BOOST_TEST(reserved->set.region_bytes == region);
}

// Its asker did not wait for the answer, and does not know the lease.
BOOST_AUTO_TEST_CASE(a_lease_whose_answer_came_too_late_is_given_back_by_its_mark) {
  auto window = open_window();
  open_set_request request{"w"};
  request.mark = random_id<set_id>();
  auto late = ask(request).value().lease;
  close_set_request closing;
  closing.mark = random_id<set_id>();
  BOOST_TEST((refusal(closing) == errc::not_found));
  closing.mark = request.mark;
  BOOST_TEST((refusal(closing, other) == errc::not_found)); // of another process
  BOOST_TEST((refusal(take_values_request{.lease = late}) == errc::ok));
  BOOST_TEST((refusal(closing) == errc::ok));
  BOOST_TEST((refusal(take_values_request{.lease = late}) == errc::not_found));
  BOOST_TEST((refusal(closing) == errc::not_found));
  BOOST_TEST((refusal(close_set_request{}) == errc::not_found)); // no mark names none
  BOOST_TEST((refusal(take_values_request{.lease = window}) == errc::ok));
}

BOOST_AUTO_TEST_CASE(leases_are_bounded) {
  auto reserved = ask(some_set("s", 10, 1));
  BOOST_TEST_REQUIRE(ask(publish_set_request{reserved.value().number}).has_value());
  std::vector<std::uint64_t> leases;
  while (true) {
    auto opened = ask(open_set_request{"s"});
    if (!opened) {
      BOOST_TEST((opened.error().code() == errc::busy));
      break;
    }
    leases.push_back(opened->lease);
    BOOST_TEST_REQUIRE(leases.size() < 10u);
  }
  BOOST_TEST(!leases.empty());
  BOOST_TEST((refusal(close_set_request{leases.front()}) == errc::ok));
  settle();
  BOOST_TEST((refusal(open_set_request{"s"}) == errc::ok));
}

BOOST_AUTO_TEST_CASE(sets_outlive_their_actor) {
  auto reserved = ask(some_set("s", 10, 1));
  BOOST_TEST_REQUIRE(ask(publish_set_request{reserved.value().number}).has_value());
  auto half = ask(some_set("half", 10, 1));
  BOOST_TEST_REQUIRE(half.has_value());
  caf::anon_send_exit(served.back(), caf::exit_reason::kill);
  settle();
  start();
  BOOST_TEST((refusal(open_set_request{"s"}) == errc::ok));
  BOOST_TEST((refusal(publish_set_request{half->number}) == errc::not_found));
  BOOST_TEST((refusal(some_set("half", 10, 1)) == errc::ok));
}

BOOST_AUTO_TEST_CASE(samples_are_appended_to_a_set_that_is_there) {
  auto reserved = ask(kept_while_used("s"));
  auto base = ask(publish_set_request{reserved.value().number}).value();
  auto wanted = some_set("s", 50, 7);
  wanted.set.extension.of = base.id;
  BOOST_TEST((refusal(wanted, other) == errc::permission_denied));
  auto more = ask(wanted);
  BOOST_TEST_REQUIRE(more.has_value());
  BOOST_TEST(!more->exists);
  BOOST_TEST(more->regions.size() == 1u);
  BOOST_TEST((refusal(wanted) == errc::busy));
  auto before = ask(open_set_request{"s"}, other).value();
  BOOST_TEST(before.set.appended.empty());
  BOOST_TEST((refusal(close_set_request{before.lease}, other) == errc::ok));
  auto published = ask(publish_set_request{more->number});
  BOOST_TEST_REQUIRE(published.has_value());
  BOOST_TEST((published.value() == more->set));
  auto opened = ask(open_set_request{"s"}, other).value();
  BOOST_TEST_REQUIRE(opened.set.appended.size() == 1u);
  BOOST_TEST((opened.set.appended[0] == appended_of(*published)));
  BOOST_TEST((ask(list_sets_request{"s", {}, 0}).value().sets.at(0) == opened.set));
  BOOST_TEST((refusal(close_set_request{opened.lease}, other) == errc::ok));
  auto part = ask(open_set_request{"s", 0, opened.set.appended[0].id}, other).value();
  BOOST_TEST((part.set == *published));
  BOOST_TEST((refusal(close_set_request{part.lease}, other) == errc::ok));
  BOOST_TEST(ask(wanted).value().exists);
  // A connection that is gone leaves no append half done. It was the last one to use the set.
  wanted.set.source = 8;
  BOOST_TEST(ask(wanted).has_value());
  settle();
  BOOST_TEST(used() == 3 * region);
  lose(channel);
  BOOST_TEST(bytes.memory.pool->stats().sets == 0u);
  BOOST_TEST(used() == 0u);
}

BOOST_AUTO_TEST_CASE(an_append_is_undone_by_its_id) {
  auto base = ask(publish_set_request{ask(some_set("s", 10, 1)).value().number}).value();
  auto wanted = some_set("s", 50, 7);
  wanted.set.extension.of = base.id;
  auto more = ask(publish_set_request{ask(wanted).value().number}).value();
  BOOST_TEST((refusal(unload_set_request{"s", more.id}, other) == errc::permission_denied));
  BOOST_TEST((refusal(unload_set_request{"s", more.id}) == errc::ok));
  BOOST_TEST(ask(open_set_request{"s"}).value().set.appended.empty());
  settle();
  BOOST_TEST(used() == region);
  BOOST_TEST(ask(publish_set_request{ask(wanted).value().number}).has_value());
  BOOST_TEST((refusal(unload_set_request{"s", {}}) == errc::ok));
  BOOST_TEST(bytes.memory.pool->stats().sets == 0u);
}

BOOST_AUTO_TEST_CASE(a_set_goes_with_the_last_connection_that_uses_it) {
  auto reserved = ask(kept_while_used("s"));
  BOOST_TEST_REQUIRE(ask(publish_set_request{reserved.value().number}).has_value());
  BOOST_TEST(ask(list_sets_request{"s", {}, 0}).value().sets.at(0).while_used);
  // To have preloaded it is to use it, and once is enough.
  auto taken = bytes.memory.leases->taken();
  for (auto i = 0; i < 3; ++i)
    BOOST_TEST(ask(kept_while_used("s")).value().exists);
  BOOST_TEST(bytes.memory.leases->taken() == taken);
  auto opened = ask(open_set_request{"s"}, other);
  BOOST_TEST_REQUIRE(opened.has_value());
  lose(channel);
  BOOST_TEST((refusal(open_set_request{"none"}, other) == errc::not_found));
  BOOST_TEST(ask(list_sets_request{"s", {}, 0}, other).value().sets.size() == 1u);
  BOOST_TEST(ask(kept_while_used("s"), other).value().exists);
  BOOST_TEST((refusal(close_set_request{opened->lease}, other) == errc::ok));
  settle();
  BOOST_TEST(used() == region); // for whom it has been preloaded
  lose(other);
  BOOST_TEST(used() == 0u);
  BOOST_TEST(bytes.memory.pool->stats().sets == 0u);
  BOOST_TEST(bytes.memory.leases->taken() == 0u);
}

BOOST_AUTO_TEST_CASE(readers_do_not_keep_the_name_of_a_set_that_was_unloaded) {
  auto reserved = ask(kept_while_used("s"));
  BOOST_TEST_REQUIRE(ask(publish_set_request{reserved.value().number}).has_value());
  BOOST_TEST_REQUIRE(ask(open_set_request{"s"}, other).has_value());
  BOOST_TEST((refusal(unload_set_request{"s", {}}) == errc::ok));
  auto next = ask(some_set("s", 100, 1)); // another life, which stays
  BOOST_TEST_REQUIRE(ask(publish_set_request{next.value().number}).has_value());
  lose(other);
  BOOST_TEST((refusal(open_set_request{"s"}) == errc::ok));
  BOOST_TEST(used() == region);
}

BOOST_AUTO_TEST_CASE(a_set_whose_connection_ends_while_it_is_published_goes) {
  auto reserved = ask(kept_while_used("s"), other);
  BOOST_TEST_REQUIRE(reserved.has_value());
  auto held = hold_mover();
  bring(
    *other,
    encode_request<data_service>(data_server_of_node, publish_set_request{reserved->number}));
  run();
  session_of(*other).on_close(*other, {errc::peer_lost, "gone"});
  sessions.erase(other.get());
  run();
  BOOST_TEST(used() == region);
  held = nullptr;
  settle();
  settle();
  BOOST_TEST(used() == 0u);
  BOOST_TEST(bytes.memory.pool->stats().sets == 0u);
}

BOOST_AUTO_TEST_CASE(what_a_connection_that_is_gone_had_asked_for_last_is_let_go) {
  auto asks_and_goes = [&](const auto& request) {
    bring(*other, encode_request<data_service>(data_server_of_node, request));
    lose(other); // before the actor sees the request
  };
  auto kept = ask(kept_while_used("s")).value();
  BOOST_TEST_REQUIRE(ask(publish_set_request{kept.number}).has_value());
  open_window();
  auto taken = bytes.memory.leases->taken();
  asks_and_goes(some_set("half", 100, 1));
  asks_and_goes(kept_while_used("s"));
  asks_and_goes(open_set_request{"s"});
  asks_and_goes(open_set_request{"w"});
  BOOST_TEST(bytes.memory.leases->taken() == taken);
  BOOST_TEST(used() == 2 * region);
  lose(channel);
  BOOST_TEST(bytes.memory.leases->taken() == 0u);
  BOOST_TEST(used() == region); // the window stays
}

BOOST_AUTO_TEST_CASE(sets_that_are_kept_while_they_are_used_do_not_outlive_their_actor) {
  auto reserved = ask(kept_while_used("s"));
  BOOST_TEST_REQUIRE(ask(publish_set_request{reserved.value().number}).has_value());
  caf::anon_send_exit(served.back(), caf::exit_reason::kill);
  settle();
  start();
  BOOST_TEST((refusal(open_set_request{"s"}) == errc::not_found));
  settle();
  BOOST_TEST(used() == 0u);
}

// As long as a connection that has preloaded it is there.
BOOST_AUTO_TEST_CASE(a_set_that_is_kept_while_it_is_used_makes_no_room) {
  heap_data_memory small{2, 10, {.when_full = storage::samples::room_policy::evict}};
  bytes.memory = small.memory;
  caf::anon_send_exit(served.back(), caf::exit_reason::kill);
  settle();
  start();
  auto reserved = ask(kept_while_used("s"));
  BOOST_TEST_REQUIRE(ask(publish_set_request{reserved.value().number}).has_value());
  BOOST_TEST((refusal(some_set("large", 2000, 1), other) == errc::no_space));
  lose(channel);
  BOOST_TEST((refusal(some_set("large", 2000, 1), other) == errc::ok));
}

BOOST_AUTO_TEST_CASE(only_the_owner_writes_to_a_window_and_others_read) {
  auto lease = open_window();
  BOOST_TEST(ask(write_window_request{lease}).value().regions.size() == 1u);
  auto asked = take_values_request{lease, 0, 0, true, {{5, 1000, 10}, {6, 1000, 20}}};
  auto lent = ask(asked).value();
  BOOST_TEST(lent.kept.empty());
  BOOST_TEST_REQUIRE(lent.to_write.size() == 2u);
  BOOST_TEST(lent.to_write[0].address != lent.to_write[1].address);
  auto theirs = ask(open_set_request{"w"}, other).value().lease;
  BOOST_TEST((refusal(write_window_request{theirs}, other) == errc::permission_denied));
  asked.lease = theirs;
  auto none = ask(asked, other).value();
  BOOST_TEST((none.kept.empty() && none.to_write.empty())); // they are being written
  BOOST_TEST((refusal(return_values_request{.lease = lease, .written = {{5, 77}}}) == errc::ok));
  auto kept = ask(asked, other).value().kept;
  BOOST_TEST_REQUIRE(kept.size() == 1u);
  auto& first = lent.to_write[0];
  BOOST_TEST((kept[0] == kept_value{first.index, first.address, 77}));
  auto counts = ask(count_window_request{"w"}).value();
  BOOST_TEST(counts.size_bytes == region);
  BOOST_TEST(counts.kept_bytes == 1000u);
  BOOST_TEST(counts.given == 1u);
}

BOOST_AUTO_TEST_CASE(what_a_writer_that_is_gone_was_writing_is_free_and_its_memory_withdrawn) {
  auto lease = open_window();
  auto memory = ask(write_window_request{lease}).value().regions.front();
  auto asked = take_values_request{lease, 0, 0, true, {{5, 1000, 10}}};
  BOOST_TEST(ask(asked).value().to_write.size() == 1u);
  BOOST_TEST(transport::find_region(memory.region, memory.key, access_mode::write).has_value());
  lose(channel);
  BOOST_TEST(!transport::find_region(memory.region, memory.key, access_mode::write).has_value());
  // Another connection of the owner writes it.
  channel = std::make_shared<answering_channel>(random_id<peer_id>(), "again");
  channel->frame_bytes_max = 1 << 20;
  channel->set_user(1000);
  asked.lease = ask(open_set_request{"w"}).value().lease;
  BOOST_TEST(ask(write_window_request{asked.lease}).has_value());
  BOOST_TEST(ask(asked).value().to_write.size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_window_refuses_what_it_cannot_have) {
  auto lease = open_window();
  auto asked = take_values_request{lease, 0, 0, true, {{5, 1000, 10}}};
  BOOST_TEST(ask(asked).value().to_write.empty()); // it has not asked for the right
  asked.values = {{2'000'000, 1000, 10}};
  BOOST_TEST((refusal(asked) == errc::invalid_argument));
  asked.values = {{5, 999, 10}};
  BOOST_TEST((refusal(asked) == errc::invalid_argument));
  asked.field = 1;
  BOOST_TEST((refusal(asked) == errc::invalid_argument));
  asked.lease = lease + 1;
  BOOST_TEST((refusal(asked) == errc::not_found));
  BOOST_TEST((refusal(return_values_request{.lease = lease, .read = {5}}) == errc::not_found));
  BOOST_TEST((refusal(return_values_request{.lease = lease, .unused = {5}}) == errc::not_found));
  BOOST_TEST((refusal(count_window_request{"v"}) == errc::not_found));
  BOOST_TEST((refusal(some_window("w", 2 * region)) == errc::already_exists));
  BOOST_TEST((refusal(some_window("x", 8 * region)) == errc::no_space));
}

BOOST_AUTO_TEST_SUITE_END()
