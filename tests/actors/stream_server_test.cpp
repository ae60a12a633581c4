// Tests the stream server's actor through sessions: who may append, read and remove, who waits and
// how long, and what becomes of the places of a peer that is gone.
#include "data_fixture.hpp"

#include <millrace/actors/loader/stream_server.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <chrono>
#include <thread>

using namespace millrace;
using namespace millrace::actors;
using namespace millrace::testing;
using namespace std::chrono_literals;

namespace {

struct stream_world : data_fixture {
  stream_world() : data_fixture(heap_data_memory{2}) {
    serve<stream_service>(stream_server_of_node, spawn_stream_server(system, deps("n0/streams")));
  }

  template <class Request>
  std::uint64_t send(const Request& request, const channel_ptr& from = nullptr) {
    auto number = bring(
      from ? *from : *channel, encode_request<stream_service>(stream_server_of_node, request));
    run();
    return number;
  }
  template <class Reply>
  result<Reply> reply(std::uint64_t number, const channel_ptr& from = nullptr) {
    auto& by = from ? *from : *channel;
    BOOST_TEST_REQUIRE(by.replies.contains(number));
    return decode_reply<Reply>(by.replies[number]);
  }
  template <class Request, class Reply = typename stream_service::template reply_of<Request>>
  result<Reply> ask(const Request& request, const channel_ptr& from = nullptr) {
    return reply<Reply>(send(request, from), from);
  }
  template <class Request>
  errc refusal(const Request& request, const channel_ptr& from = nullptr) {
    auto answer = ask(request, from);
    return answer ? errc::ok : answer.error().code();
  }

  void create(
    std::uint64_t capacity, stream_policy policy = stream_policy::fifo,
    full_policy when_full = full_policy::block) {
    create_stream_request request{"s", {}};
    request.options.fields = {{"x", dtype::u8, {1000}}};
    request.options.capacity = capacity;
    request.options.policy = policy;
    request.options.when_full = when_full;
    BOOST_TEST_REQUIRE(ask(request).has_value());
  }
  opened_stream open(bool writes, const channel_ptr& from = nullptr) {
    return ask(open_stream_request{"s", writes}, from).value();
  }
  stream_status now() { return ask(list_streams_request{}).value().streams.at(0); }

  // Lends places, at once.
  std::vector<std::uint32_t> places(std::uint64_t lease, std::uint64_t wanted) {
    return ask(append_samples_request{.lease = lease, .wanted = wanted}).value().places;
  }
  void append(std::uint64_t lease, std::uint64_t count) {
    for (auto place : places(lease, count))
      BOOST_TEST_REQUIRE(
        ask(append_samples_request{.lease = lease, .written = {{place, 7}}}).has_value());
  }

  bool may_reach(const bulk_handle& memory, access_mode how) {
    return transport::find_region(memory.region, memory.key, how).has_value();
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(stream_servers, stream_world)

BOOST_AUTO_TEST_CASE(places_are_lent_committed_taken_and_released) {
  create(2);
  auto to = open(true), from = open(false);
  BOOST_TEST_REQUIRE(to.regions.size() == 1u);
  BOOST_TEST((to.regions[0].allows == access_mode::write));
  BOOST_TEST((from.regions[0].allows == access_mode::read));
  BOOST_TEST(validate(to.places).ok());
  BOOST_TEST(places(to.lease, 5).size() == 2u);
  BOOST_TEST(places(to.lease, 1).empty());
  auto committed =
    ask(append_samples_request{.lease = to.lease, .written = {{0, 40}, {1, 41}}, .wanted = 1});
  BOOST_TEST(committed.value().places.empty());
  auto got = ask(take_samples_request{.lease = from.lease, .count = 2}).value();
  BOOST_TEST((got.samples == std::vector<given_sample>{{0, 0, 40}, {1, 1, 41}}));
  BOOST_TEST(places(to.lease, 1).empty());
  BOOST_TEST((refusal(release_samples_request{.lease = from.lease, .read = {0}}) == errc::ok));
  BOOST_TEST(places(to.lease, 1).size() == 1u);
  BOOST_TEST((refusal(release_samples_request{.lease = from.lease, .put_back = {1}}) == errc::ok));
  BOOST_TEST(now().counts.present == 1u);
  BOOST_TEST(now().counts.writing == 1u);
  BOOST_TEST(now().owner == "user 1000");
}

BOOST_AUTO_TEST_CASE(places_that_a_peer_does_not_have_are_refused) {
  create(4);
  auto to = open(true), second = open(true), from = open(false);
  auto mine = places(to.lease, 2);
  auto theirs = places(second.lease, 1);
  auto commit = [&](std::uint64_t lease, std::vector<written_sample> written) {
    return refusal(append_samples_request{.lease = lease, .written = std::move(written)});
  };
  BOOST_TEST((commit(to.lease, {{theirs[0], 1}}) == errc::not_found));
  BOOST_TEST((commit(to.lease, {{UINT32_MAX, 1}}) == errc::not_found));
  BOOST_TEST((commit(to.lease, {{mine[0], 1}, {mine[0], 1}}) == errc::not_found));
  BOOST_TEST((commit(from.lease, {}) == errc::not_found)); // a reader
  BOOST_TEST((commit(to.lease + 1, {}) == errc::not_found));
  BOOST_TEST(
    (refusal(append_samples_request{.lease = to.lease}, other) == errc::not_found)); // another's
  BOOST_TEST(now().counts.appended == 0u);
  // What was refused has changed nothing.
  BOOST_TEST((commit(to.lease, {{mine[0], 1}, {mine[1], 2}}) == errc::ok));
  BOOST_TEST((refusal(take_samples_request{.lease = to.lease, .count = 1}) == errc::not_found));
  for (std::uint64_t bad : {0, 5})
    BOOST_TEST(
      (refusal(take_samples_request{.lease = from.lease, .count = bad}) == errc::invalid_argument));
  auto got = ask(take_samples_request{.lease = from.lease, .count = 1}).value();
  auto place = got.samples.at(0).place;
  auto release = [&](std::vector<std::uint32_t> read, std::vector<std::uint32_t> back) {
    return refusal(release_samples_request{from.lease, std::move(read), std::move(back)});
  };
  BOOST_TEST((release({place}, {place}) == errc::not_found));
  BOOST_TEST((release({place + 1}, {}) == errc::not_found));
  BOOST_TEST((release({place}, {}) == errc::ok));
  BOOST_TEST((release({place}, {}) == errc::not_found));
}

BOOST_AUTO_TEST_CASE(who_waits_is_answered_in_turn_or_at_its_time) {
  create(2);
  auto to = open(true), from = open(false), second = open(false, other);
  auto first_take =
    send(take_samples_request{.lease = from.lease, .count = 2, .patience_ms = 60'000});
  auto second_take =
    send(take_samples_request{.lease = second.lease, .count = 1, .patience_ms = 500}, other);
  append(to.lease, 1);
  // The first one wants two, and the second one waits behind it.
  BOOST_TEST(!channel->replies.contains(first_take));
  BOOST_TEST(!other->replies.contains(second_take));
  sched.advance_time(1s);
  run();
  BOOST_TEST(reply<taken_samples>(second_take, other).value().samples.empty());
  append(to.lease, 1);
  BOOST_TEST(reply<taken_samples>(first_take).value().samples.size() == 2u);
  // A producer waits until a reader releases a place.
  auto waits = send(append_samples_request{.lease = to.lease, .wanted = 3, .patience_ms = 60'000});
  BOOST_TEST(
    (refusal(append_samples_request{.lease = to.lease, .wanted = 1, .patience_ms = 1}) ==
     errc::busy));
  BOOST_TEST((refusal(release_samples_request{.lease = from.lease, .read = {1}}) == errc::ok));
  BOOST_TEST((reply<places_to_write>(waits).value().places == std::vector<std::uint32_t>{1}));
  BOOST_TEST(now().take_waits == 2u);
  BOOST_TEST(now().append_waits == 1u);
}

// Otherwise a reader whose batch is nearly the capacity would wait for ever.
BOOST_AUTO_TEST_CASE(no_sample_is_dropped_while_a_reader_waits_for_more) {
  create(3, stream_policy::fifo, full_policy::drop_oldest);
  auto to = open(true), from = open(false);
  append(to.lease, 2);
  auto take = [&](std::uint64_t count) {
    return send(take_samples_request{.lease = from.lease, .count = count, .patience_ms = 60'000});
  };
  auto waits = take(3);
  auto lent = places(to.lease, 3);
  BOOST_TEST_REQUIRE(lent.size() == 1u);
  auto more = send(append_samples_request{.lease = to.lease, .wanted = 1, .patience_ms = 60'000});
  BOOST_TEST(!channel->replies.contains(more));
  BOOST_TEST(
    (refusal(append_samples_request{.lease = to.lease, .written = {{lent[0], 9}}}) == errc::ok));
  auto got = reply<taken_samples>(waits).value().samples;
  BOOST_TEST(got.size() == 3u);
  BOOST_TEST(now().counts.dropped == 0u);
  for (auto& one : got)
    BOOST_TEST(
      (refusal(release_samples_request{.lease = from.lease, .read = {one.place}}) == errc::ok));
  BOOST_TEST(reply<places_to_write>(more).value().places.size() == 1u);
  // Nobody waits: the oldest makes room.
  append(to.lease, 2);
  BOOST_TEST(places(to.lease, 2).size() == 2u);
  BOOST_TEST(now().counts.dropped == 2u);
}

BOOST_AUTO_TEST_CASE(a_reservoir_replaces_no_sample_while_a_reader_waits_for_more) {
  create(3, stream_policy::reservoir);
  auto to = open(true), from = open(false);
  append(to.lease, 2);
  auto first = ask(take_samples_request{.lease = from.lease, .count = 2}).value().samples;
  for (auto& one : first)
    BOOST_TEST(
      (refusal(release_samples_request{.lease = from.lease, .read = {one.place}}) == errc::ok));
  auto waits = send(take_samples_request{.lease = from.lease, .count = 3, .patience_ms = 60'000});
  auto lent = places(to.lease, 3);
  BOOST_TEST_REQUIRE(lent.size() == 1u);
  BOOST_TEST(
    (refusal(append_samples_request{.lease = to.lease, .written = {{lent[0], 9}}}) == errc::ok));
  BOOST_TEST(reply<taken_samples>(waits).value().samples.size() == 3u);
  BOOST_TEST(now().counts.replaced == 0u);
}

BOOST_AUTO_TEST_CASE(a_reader_has_a_bound_of_requests_that_wait) {
  create(2);
  auto from = open(false, other);
  std::size_t refused = 0;
  for (int i = 0; i < 100; ++i) {
    auto number =
      send(take_samples_request{.lease = from.lease, .count = 1, .patience_ms = 60'000}, other);
    refused += other->replies.contains(number);
  }
  BOOST_TEST(refused > 0u);
  BOOST_TEST(now().take_waits <= 64u);
}

BOOST_AUTO_TEST_CASE(the_end_of_all_producers_is_that_of_the_stream) {
  create_stream_request request{"s", {}};
  request.options.fields = {{"x", dtype::u8, {1000}}};
  request.options.capacity = 2;
  request.options.producers = 2;
  BOOST_TEST_REQUIRE(ask(request).has_value());
  auto first = open(true), second = open(true, other), from = open(false);
  BOOST_TEST((refusal(open_stream_request{"s", true}) == errc::busy));
  auto waits = send(take_samples_request{.lease = from.lease, .count = 2, .patience_ms = 60'000});
  append(first.lease, 1);
  BOOST_TEST((refusal(leave_stream_request{first.lease, true}) == errc::ok));
  BOOST_TEST((refusal(leave_stream_request{first.lease, true}) == errc::not_found));
  BOOST_TEST(!now().ended);
  // One whose connection is lost has not ended, and makes room for another.
  lose(other);
  BOOST_TEST(!now().ended);
  second = open(true);
  BOOST_TEST((refusal(leave_stream_request{second.lease, true}) == errc::ok));
  BOOST_TEST(now().ended);
  auto last = reply<taken_samples>(waits).value();
  BOOST_TEST_REQUIRE(last.samples.size() == 1u);
  // It may still be put back.
  auto over = send(take_samples_request{.lease = from.lease, .count = 2, .patience_ms = 60'000});
  BOOST_TEST(!channel->replies.contains(over));
  BOOST_TEST(
    (refusal(release_samples_request{.lease = from.lease, .read = {last.samples[0].place}}) ==
     errc::ok));
  BOOST_TEST(reply<taken_samples>(over).value().is_over);
  BOOST_TEST(ask(take_samples_request{.lease = from.lease, .count = 2}).value().is_over);
  BOOST_TEST((refusal(open_stream_request{"s", true}) == errc::invalid_argument));
}

// Its asker did not wait for the answer, and does not know the lease.
BOOST_AUTO_TEST_CASE(a_lease_whose_answer_came_too_late_is_given_back_by_its_mark) {
  create(2);
  auto mark = random_id<set_id>();
  open_stream_request request{"s", false};
  request.mark = mark;
  auto opened = ask(request).value();
  BOOST_TEST(now().readers == 1u);
  leave_stream_request leaving;
  leaving.mark = random_id<set_id>();
  BOOST_TEST((refusal(leaving) == errc::not_found));
  leaving.mark = mark;
  BOOST_TEST((refusal(leaving, other) == errc::not_found)); // of another process
  BOOST_TEST(now().readers == 1u);
  BOOST_TEST((refusal(leaving) == errc::ok));
  BOOST_TEST(now().readers == 0u);
  BOOST_TEST((refusal(leave_stream_request{opened.lease}) == errc::not_found));
  open(false);
  BOOST_TEST((refusal(leave_stream_request{}) == errc::not_found)); // no mark names none
}

BOOST_AUTO_TEST_CASE(nothing_is_appended_after_the_end) {
  create(2);
  auto to = open(true);
  auto place = places(to.lease, 1).at(0);
  BOOST_TEST((refusal(end_stream_request{"s"}, other) == errc::permission_denied));
  BOOST_TEST((refusal(end_stream_request{"s"}) == errc::ok));
  BOOST_TEST(
    (refusal(append_samples_request{.lease = to.lease, .written = {{place, 1}}}) ==
     errc::invalid_argument));
  BOOST_TEST(now().counts.appended == 0u);
  BOOST_TEST(now().counts.writing == 0u);
}

// The memory is withdrawn from a peer before its places are lent to others.
BOOST_AUTO_TEST_CASE(a_peer_that_is_gone_reaches_no_memory_and_has_no_places) {
  create(2);
  auto to = open(true, other), from = open(false, other), mine = open(true);
  auto lent = ask(append_samples_request{.lease = to.lease, .wanted = 2}, other).value();
  BOOST_TEST(lent.places.size() == 2u);
  BOOST_TEST(
    (refusal(append_samples_request{.lease = to.lease, .written = {{lent.places[0], 1}}}, other) ==
     errc::ok));
  BOOST_TEST(
    ask(take_samples_request{.lease = from.lease, .count = 1}, other).value().samples.size() == 1u);
  auto waits =
    send(append_samples_request{.lease = mine.lease, .wanted = 2, .patience_ms = 60'000});
  BOOST_TEST(may_reach(to.regions[0], access_mode::write));
  BOOST_TEST(may_reach(from.regions[0], access_mode::read));
  lose(other);
  BOOST_TEST(!may_reach(to.regions[0], access_mode::write));
  BOOST_TEST(!may_reach(from.regions[0], access_mode::read));
  BOOST_TEST(may_reach(mine.regions[0], access_mode::write));
  // The first one of its places that came back, and then the other.
  auto got = reply<places_to_write>(waits).value().places.size();
  BOOST_TEST(got + places(mine.lease, 2).size() == 2u);
  auto counts = now().counts;
  BOOST_TEST(counts.given == 1u); // taken is given
  BOOST_TEST(counts.present + counts.reading == 0u);
}

BOOST_AUTO_TEST_CASE(who_is_gone_before_its_opening_is_seen_has_not_opened) {
  create(2);
  auto taken = bytes.memory.leases->taken();
  for (auto writes : {true, false}) {
    bring(
      *other,
      encode_request<stream_service>(stream_server_of_node, open_stream_request{"s", writes}));
    lose(other);
  }
  BOOST_TEST(now().producers == 0u);
  BOOST_TEST(now().readers == 0u);
  BOOST_TEST(bytes.memory.leases->taken() == taken);
}

BOOST_AUTO_TEST_CASE(only_the_owner_removes_a_stream_and_its_memory_is_free_then) {
  create(2);
  auto to = open(true), from = open(false, other);
  auto waits =
    send(take_samples_request{.lease = from.lease, .count = 1, .patience_ms = 60'000}, other);
  BOOST_TEST((refusal(remove_stream_request{"s"}, other) == errc::permission_denied));
  BOOST_TEST((refusal(remove_stream_request{"t"}) == errc::not_found));
  BOOST_TEST(bytes.memory.pool->stats().used_bytes > 0u);
  BOOST_TEST((refusal(remove_stream_request{"s"}) == errc::ok));
  BOOST_TEST((reply<taken_samples>(waits, other).error().code() == errc::not_found));
  BOOST_TEST((refusal(append_samples_request{.lease = to.lease}) == errc::not_found));
  settle();
  BOOST_TEST(bytes.memory.pool->stats().used_bytes == 0u);
  BOOST_TEST(bytes.memory.leases->taken() == 0u);
  BOOST_TEST(!may_reach(to.regions[0], access_mode::write));
  BOOST_TEST(ask(list_streams_request{}).value().streams.empty());
}

// Its memory is withdrawn on a mover, which may take long.
BOOST_AUTO_TEST_CASE(a_removed_stream_can_be_created_again_at_once) {
  create(2);
  auto from = open(false);
  auto held = hold_mover();
  BOOST_TEST((refusal(remove_stream_request{"s"}) == errc::ok));
  create(2, stream_policy::firo);
  auto again = open(false);
  held = nullptr;
  settle();
  BOOST_TEST(!may_reach(from.regions[0], access_mode::read));
  BOOST_TEST(may_reach(again.regions[0], access_mode::read));
  BOOST_TEST(bytes.memory.pool->stats().used_bytes == heap_data_memory::region_bytes);
  BOOST_TEST((refusal(remove_stream_request{"s"}) == errc::ok));
  settle();
  BOOST_TEST(bytes.memory.pool->stats().used_bytes == 0u);
}

BOOST_AUTO_TEST_CASE(hostile_options_are_refused) {
  auto create_with = [&](auto change) {
    create_stream_request request{"s", {}};
    request.options.fields = {{"x", dtype::u8, {1000}}};
    change(request.options);
    return refusal(request);
  };
  BOOST_TEST((create_with([](auto& o) { o.capacity = 0; }) == errc::invalid_argument));
  BOOST_TEST((create_with([](auto& o) { o.capacity = UINT64_MAX; }) == errc::invalid_argument));
  BOOST_TEST((create_with([](auto& o) { o.policy = stream_policy{9}; }) == errc::invalid_argument));
  BOOST_TEST((create_with([](auto& o) { o.threshold = 1; }) == errc::invalid_argument));
  BOOST_TEST((create_with([](auto& o) {
                o.fields[0].shape = {UINT64_MAX, 9};
              }) == errc::invalid_argument));
  BOOST_TEST((create_with([](auto& o) { o.fields.clear(); }) == errc::invalid_argument));
  BOOST_TEST(
    (create_with([](auto& o) { o.fields.resize(65, o.fields[0]); }) == errc::invalid_argument));
  BOOST_TEST((create_with([](auto& o) { o.capacity = stream_capacity_max; }) == errc::no_space));
  // Of small samples the places need more heap than the samples need memory.
  auto many_small = [&](std::uint64_t capacity) {
    return create_with([=](auto& o) {
      o.fields[0].shape = {1};
      o.capacity = capacity;
    });
  };
  BOOST_TEST((many_small(stream_capacity_max) == errc::invalid_argument));
  BOOST_TEST((many_small((1 << 19) + 1) == errc::invalid_argument));
  // The pool takes the places for a working set; the errors say what it is.
  using sizes = std::pair<std::uint64_t, std::uint64_t>;
  for (auto [shape, capacity] : {sizes{1, 1 << 30}, sizes{1 << 20, 1 << 10}, sizes{0, 1}}) {
    create_stream_request request{"s", {}};
    request.options.fields = {{"x", dtype::u8, {shape}}};
    request.options.capacity = capacity;
    auto said = ask(request).error().detail();
    BOOST_TEST(said.find("stream s: ") == 0u, said);
    BOOST_TEST(said.find("of the stream") == std::string::npos, said);
  }
  BOOST_TEST(ask(end_stream_request{"none"}).error().detail() == "there is no stream none");
  BOOST_TEST(
    ask(open_stream_request{"none", true}).error().detail() ==
    "there is no stream none; create it");
  BOOST_TEST(bytes.memory.pool->stats().used_bytes == 0u);
  BOOST_TEST(bytes.memory.leases->taken() == 0u);
}

BOOST_AUTO_TEST_SUITE_END()
