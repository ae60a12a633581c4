// Tests what follows from the declaration of a service: numbers, both ends of the wire, the bytes
// of its messages. A session is asked through memory, under the deterministic scheduler.
#include "counter_service.hpp"

#include <millrace/actors/node/node_actor.hpp>
#include <millrace/actors/services.hpp>
#include <millrace/core/digest.hpp>
#include <millrace/tests/support/message_round_trip.hpp>
#include <millrace/tests/support/numbered_message.hpp>
#include <millrace/tests/support/wire_fixture.hpp>

#include <boost/test/unit_test.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>

using namespace millrace;
using namespace millrace::actors;
using namespace millrace::testing;

namespace {

struct counting_fixture : wire_fixture {
  counter_actor counting =
    serve<counter_service>("here", system.spawn<counters>("here", fabric, operation_limits{}));

  template <class Request>
  auto ask_frame(const Request& request, const std::string& target = "here") {
    return ask_through_frames<counter_service>(target, request);
  }
};

struct kept_message {
  const char* message;
  std::size_t size;
  std::uint64_t digest;
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(service_tests, counting_fixture)

BOOST_AUTO_TEST_CASE(numbers_and_names_are_what_peers_of_every_version_know) {
  static_assert(store_service::name == "models");
  static_assert(store_service::number_of<store_request>() == 1);
  static_assert(store_service::number_of<load_request>() == 2);
  static_assert(store_service::number_of<describe_request>() == 3);
  static_assert(store_service::number_of<list_request>() == 4);
  static_assert(store_service::number_of<erase_request>() == 5);
  static_assert(store_service::number_of<pin_request>() == 6);
  static_assert(store_service::number_of<resolve_request>() == 7);
  static_assert(store_service::number_of<provider_status_request>() == 8);
  static_assert(store_service::number_of<locate_request>() == 9);
  static_assert(store_service::number_of<adopt_request>() == 10);
  static_assert(store_service::number_of<store_many_request>() == 11);
  static_assert(store_service::number_of<load_many_request>() == 12);
  static_assert(store_service::number_of<watch_request>() == 13);
  static_assert(store_service::number_of<unwatch_request>() == 14);
  static_assert(store_service::number_of<watch_news_request>() == 15);
  static_assert(store_service::end_number == 16);
  static_assert(node_service::name == "node");
  static_assert(node_service::number_of<directory_request>() == 32);
  static_assert(node_service::number_of<node_status_request>() == 33);
  static_assert(node_service::end_number == 34);
  static_assert(checkpoint_service::name == "checkpoints");
  static_assert(checkpoint_service::number_of<enroll_request>() == 64);
  static_assert(checkpoint_service::number_of<leave_request>() == 65);
  static_assert(checkpoint_service::number_of<save_request>() == 66);
  static_assert(checkpoint_service::number_of<durable_request>() == 67);
  static_assert(checkpoint_service::number_of<restore_request>() == 68);
  static_assert(checkpoint_service::number_of<list_checkpoints_request>() == 69);
  static_assert(checkpoint_service::number_of<describe_shard_request>() == 70);
  static_assert(checkpoint_service::number_of<verify_request>() == 71);
  static_assert(checkpoint_service::number_of<erase_checkpoint_request>() == 72);
  static_assert(checkpoint_service::number_of<repack_request>() == 73);
  static_assert(checkpoint_service::number_of<watch_request>() == 74);
  static_assert(checkpoint_service::number_of<unwatch_request>() == 75);
  static_assert(checkpoint_service::number_of<watch_news_request>() == 76);
  static_assert(checkpoint_service::end_number == 77);
  static_assert(data_service::name == "data");
  static_assert(data_service::number_of<reserve_set_request>() == 96);
  static_assert(data_service::number_of<publish_set_request>() == 97);
  static_assert(data_service::number_of<open_set_request>() == 98);
  static_assert(data_service::number_of<close_set_request>() == 99);
  static_assert(data_service::number_of<unload_set_request>() == 100);
  static_assert(data_service::number_of<list_sets_request>() == 101);
  static_assert(data_service::number_of<write_window_request>() == 102);
  static_assert(data_service::number_of<take_values_request>() == 103);
  static_assert(data_service::number_of<return_values_request>() == 104);
  static_assert(data_service::number_of<count_window_request>() == 105);
  static_assert(data_service::number_of<join_set_request>() == 106);
  static_assert(data_service::number_of<claim_blocks_request>() == 107);
  static_assert(data_service::end_number == 108);
  static_assert(stream_service::name == "streams");
  static_assert(stream_service::number_of<create_stream_request>() == 128);
  static_assert(stream_service::number_of<open_stream_request>() == 129);
  static_assert(stream_service::number_of<append_samples_request>() == 130);
  static_assert(stream_service::number_of<take_samples_request>() == 131);
  static_assert(stream_service::number_of<release_samples_request>() == 132);
  static_assert(stream_service::number_of<leave_stream_request>() == 133);
  static_assert(stream_service::number_of<end_stream_request>() == 134);
  static_assert(stream_service::number_of<remove_stream_request>() == 135);
  static_assert(stream_service::number_of<list_streams_request>() == 136);
  static_assert(stream_service::end_number == 137);
  static_assert(group_service::name == "groups");
  static_assert(group_service::number_of<join_group_request>() == 160);
  static_assert(group_service::number_of<renew_group_request>() == 161);
  static_assert(group_service::number_of<group_news_request>() == 162);
  static_assert(group_service::number_of<leave_group_request>() == 163);
  static_assert(group_service::end_number == 164);
  static_assert(counter_service::number_of<echo_request>() == 897);
}

namespace {

// Sizes and digests of messages in which every field is set, as version 0.1.0 wrote them. What is
// appended to a message changes its line; anything else that does breaks peers of other versions.
// Appended so far: reports, buffers, stalls, staging and failures of `node_status`,
// `save_times::slot_us`, `provider_status::down`, failures, descriptions and marks, what requests
// and records of models say of their placement, `erase_request::version`, `location::compared`,
// `adopt_request::asked_all`, `location::start`, `adopt_request::start`, `save_request::run_min`,
// `enroll_receipt::run`, `save_receipt::run`, `load_receipt::stored_at_ns`,
// `store_request::version_after`, watches of `provider_status`,
// `enroll_receipt::extra_bytes_max`, `save_request::extra`, `restore_request::extra`,
// `load_receipt::extra_bytes`, `selection::offsets`, `shard_spec::places`,
// `node_entry::data_bytes`, `node_status::data`, `set_info::division`, `open_set_request::id`,
// `list_sets_request::parts`, `set_info::left_out`, `set_info::window_bytes`,
// `data_status::streams` and samples, `open_stream_request::mark`, `leave_stream_request::mark`,
// `append_samples_request::timeout_ms`, `take_samples_request::timeout_ms`,
// `open_set_request::mark`, `close_set_request::mark`, `data_status::windows`,
// `set_info::extension`, `set_info::appended`, `data_status::joins`.
constexpr kept_message kept[] = {
  {"store_request", 216, 0xb72e4e5fe8b53598},
  {"store_receipt", 37, 0x57593ba0eea681d4},
  {"load_request", 123, 0xf12c328f41982bcf},
  {"load_reply", 41, 0x3ece352c970772e1},
  {"describe_request", 24, 0x1f62d84e286ad37b},
  {"model_record", 106, 0xf8c40543b18f4549},
  {"list_request", 19, 0x98f98f73299bc4f3},
  {"model_list", 56, 0xf44a4779c567b38e},
  {"erase_request", 25, 0x6217cb1ad2117caa},
  {"done_reply", 5, 0x8cd045b8efcef9bd},
  {"pin_request", 24, 0x1e8c39e0eeb340f5},
  {"done_reply", 5, 0x8cd045b8efcef9bd},
  {"resolve_request", 37, 0x0d681f611970ea1f},
  {"layer_list", 51, 0x95ed84f071b9ef8a},
  {"provider_status_request", 5, 0x8cd045b8efcef9bd},
  {"provider_status", 77, 0x79efb318de2b872d},
  {"locate_request", 18, 0x2999d0d69761bf41},
  {"location", 322, 0x4ac1797a513584b6},
  {"adopt_request", 213, 0xd0b73c21efa4195a},
  {"done_reply", 5, 0x8cd045b8efcef9bd},
  {"store_many_request", 453, 0x23b98318149f92fd},
  {"store_many_reply", 107, 0x3cbddf21abfa185c},
  {"load_many_request", 256, 0xfb18734d559364d1},
  {"load_many_reply", 115, 0xfca900e03c5e9d58},
  {"watch_request", 27, 0x6308f3504da4a909},
  {"done_reply", 5, 0x8cd045b8efcef9bd},
  {"unwatch_request", 5, 0x8cd045b8efcef9bd},
  {"done_reply", 5, 0x8cd045b8efcef9bd},
  {"watch_news_request", 5, 0x8cd045b8efcef9bd},
  {"watch_news", 32, 0x76bfec15586fecc1},
  {"directory_request", 5, 0x8cd045b8efcef9bd},
  {"directory", 212, 0x7f99b187e83034ac},
  {"node_status_request", 5, 0x8cd045b8efcef9bd},
  {"node_status", 1003, 0xd9bd02bbc2267e77},
  {"enroll_request", 207, 0x080ad5dca11beff7},
  {"enroll_receipt", 151, 0x264fba08a55bb248},
  {"leave_request", 6, 0x92ac567be0d5d040},
  {"done_reply", 5, 0x8cd045b8efcef9bd},
  {"save_request", 57, 0x87df8afa0ca43a8f},
  {"save_receipt", 47, 0x08630d6a9ab202a6},
  {"durable_request", 7, 0x242fe29a942b61e1},
  {"save_receipt", 47, 0x08630d6a9ab202a6},
  {"restore_request", 114, 0x1bc16384f2e0b7cc},
  {"load_reply", 41, 0x3ece352c970772e1},
  {"list_checkpoints_request", 19, 0x98f98f73299bc4f3},
  {"checkpoint_list", 276, 0xab33d919b1a30285},
  {"describe_shard_request", 12, 0x72570c134d918356},
  {"shard_spec", 153, 0x0fa5f307bddb760b},
  {"verify_request", 15, 0x0961418f6102fc99},
  {"verify_receipt", 20, 0xc441b33bccd72f73},
  {"erase_checkpoint_request", 13, 0x5ae37fc18c44417c},
  {"done_reply", 5, 0x8cd045b8efcef9bd},
  {"repack_request", 6, 0x8e156c4da4ed8f0c},
  {"repack_report", 12, 0x55e95afc57a8543a},
  {"watch_request", 27, 0x6308f3504da4a909},
  {"done_reply", 5, 0x8cd045b8efcef9bd},
  {"unwatch_request", 5, 0x8cd045b8efcef9bd},
  {"done_reply", 5, 0x8cd045b8efcef9bd},
  {"watch_news_request", 5, 0x8cd045b8efcef9bd},
  {"watch_news", 32, 0x76bfec15586fecc1},
  {"reserve_set_request", 274, 0x6dbf07628b06fd35},
  {"set_reservation", 374, 0xa714cdac5ab3bbea},
  {"publish_set_request", 6, 0x8e156c4da4ed8f0c},
  {"set_info", 268, 0x4d0316b385b5643a},
  {"open_set_request", 44, 0xdaf1e26b5c7ca280},
  {"opened_set", 438, 0x9ecde1f8a6c83d57},
  {"close_set_request", 21, 0xe3bcfa89ee02080c},
  {"done_reply", 5, 0x8cd045b8efcef9bd},
  {"unload_set_request", 27, 0x99be52031d36fa38},
  {"done_reply", 5, 0x8cd045b8efcef9bd},
  {"list_sets_request", 20, 0x9dd432cc1d05b9f5},
  {"set_list", 587, 0xd7c32de7a52fe75e},
  {"write_window_request", 5, 0x8cd045b8efcef9bd},
  {"writable_window", 100, 0xdf3b87495f7fd3df},
  {"take_values_request", 23, 0x26e0904e9be297d4},
  {"taken_values", 32, 0x7f3293098ae37725},
  {"return_values_request", 28, 0xea770300bebcc623},
  {"done_reply", 5, 0x8cd045b8efcef9bd},
  {"count_window_request", 11, 0x8bb3dcb0fa54a5c6},
  {"window_counts", 13, 0x31a205b1f8ac9913},
  {"join_set_request", 274, 0x6dbf07628b06fd35},
  {"set_reservation", 374, 0xa714cdac5ab3bbea},
  {"claim_blocks_request", 33, 0xa643193bc8a5b2a3},
  {"claimed_blocks", 14, 0xa6b73a17915c9e64},
  {"create_stream_request", 53, 0x9e1c4c999adc0e86},
  {"stream_status", 98, 0xa6fe62e036891600},
  {"open_stream_request", 29, 0x20364612e2d11214},
  {"opened_stream", 486, 0xd57028b7265314bf},
  {"append_samples_request", 24, 0x0a375573bbb243ab},
  {"places_to_write", 7, 0x3695877291a814e1},
  {"take_samples_request", 8, 0xc07d2885bc045e66},
  {"taken_samples", 20, 0x39f0957f1b72d882},
  {"release_samples_request", 11, 0x227f9fe4b667dd67},
  {"done_reply", 5, 0x8cd045b8efcef9bd},
  {"leave_stream_request", 22, 0x89d36a395b9d60af},
  {"done_reply", 5, 0x8cd045b8efcef9bd},
  {"end_stream_request", 11, 0x8bb3dcb0fa54a5c6},
  {"done_reply", 5, 0x8cd045b8efcef9bd},
  {"remove_stream_request", 11, 0x8bb3dcb0fa54a5c6},
  {"done_reply", 5, 0x8cd045b8efcef9bd},
  {"list_streams_request", 19, 0x98f98f73299bc4f3},
  {"stream_list", 202, 0x7fa10547fe4dab1a},
  {"join_group_request", 37, 0xcb8cd4a81e828ffe},
  {"group_epoch", 80, 0x814230495a07ac46},
  {"renew_group_request", 7, 0x242fe29a942b61e1},
  {"group_epoch", 80, 0x814230495a07ac46},
  {"group_news_request", 7, 0x242fe29a942b61e1},
  {"group_news", 13, 0x1d951395693bc7ee},
  {"leave_group_request", 21, 0xe3bcfa89ee02080c},
  {"done_reply", 5, 0x8cd045b8efcef9bd},
};

} // namespace

BOOST_AUTO_TEST_CASE(every_message_has_the_bytes_that_it_has_always_had) {
  std::size_t at = 0;
  all_services::each([&]<class Service>() {
    each_message<Service>([&]<class Message>() {
      BOOST_TEST_REQUIRE(at < std::size(kept));
      auto& line = kept[at++];
      auto bytes = encode(numbered<Message>());
      auto found = digest(bytes.data(), bytes.size());
      BOOST_TEST(
        (bytes.size() == line.size && found == line.digest),
        fmt::format("{}: {} bytes now, digest {:#018x}", line.message, bytes.size(), found));
    });
  });
  BOOST_TEST(at == std::size(kept));
}

BOOST_AUTO_TEST_CASE(the_receipt_of_an_older_service_is_read) {
  // It ends before the last field of its times, and has no run after them.
  auto receipt = numbered<save_receipt>();
  auto bytes = encode(receipt);
  bytes.resize(bytes.size() - 2);
  auto shorten = [&](std::size_t length_at, int by) {
    bytes[length_at] = static_cast<std::byte>(std::to_integer<int>(bytes[length_at]) - by);
  };
  shorten(0, 2);
  shorten(bytes.size() - 8, 1);
  BOOST_TEST(bytes.size() == 45u);
  BOOST_TEST(digest(bytes.data(), bytes.size()) == 0x5f83b56365a23487u);
  auto older = decode<save_receipt>(bytes, "a receipt");
  BOOST_TEST_REQUIRE(older.has_value());
  receipt.times.slot_us = 0;
  receipt.run = 0;
  BOOST_TEST((*older == receipt));
}

BOOST_AUTO_TEST_CASE(the_status_of_an_older_node_is_read) {
  // Commit 0244387 wrote it, with every field set.
  std::ifstream file{MILLRACE_FIXTURES "/v1/node_status.bin", std::ios::binary};
  std::string bytes{std::istreambuf_iterator<char>{file}, {}};
  BOOST_TEST_REQUIRE(bytes.size() == 361u);
  auto older = decode<node_status>(std::as_bytes(std::span{bytes}), "a status");
  BOOST_TEST_REQUIRE(older.has_value());
  BOOST_TEST(older->node == "text 1");
  BOOST_TEST(older->pid == 4u);
  BOOST_TEST_REQUIRE(older->providers.size() == 2u);
  BOOST_TEST(older->providers[1].group == "text 37");
  BOOST_TEST(older->providers[1].store.models == 38u);
  BOOST_TEST(older->providers[1].checkpoints.flushed.bytes == 60u);
  BOOST_TEST_REQUIRE(older->paths.size() == 2u);
  BOOST_TEST(older->paths[1].bytes == 72u);
  BOOST_TEST(older->paths[1].carrier == "text 78");
  BOOST_TEST((older->addresses == std::vector<std::string>{"text 79", "text 80"}));
  BOOST_TEST(older->reports.empty());
}

BOOST_AUTO_TEST_CASE(a_providers_status_has_its_fields_where_older_versions_look_for_them) {
  provider_status s;
  s.name = "pool";
  s.kind = "pmem";
  s.group = "g";
  s.durable = true;
  s.capacity_bytes = 2;
  s.used_bytes = 3;
  s.in_flight = 5;
  s.queued = 6;
  s.store = {1, 4, 7, 8, 9, 10, 11, 0};
  s.checkpoints = {true, 12, 13, 14, 15, 16, 17, 18, 19, true, {20, 21, 22, 23}};
  const std::uint8_t kept[] = {
    0x2a, 0,    0,    0,    0x04, 'p',  'o',  'o',  'l',  0x04, 'p',  'm',  'e',  'm',  0x01, 'g',
    0x01, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0x01, 0x0c, 0x0d, 0x0e,
    0x0f, 0x10, 0x11, 0x12, 0x13, 0x01, 0x04, 0,    0,    0,    0x14, 0x15, 0x16, 0x17};
  auto bytes = std::as_bytes(std::span{kept});
  // The length comes first. Sections that were added since follow what is here.
  auto written = encode(s);
  BOOST_TEST_REQUIRE(written.size() >= bytes.size());
  BOOST_TEST(std::ranges::equal(bytes.subspan(4), std::span{written}.subspan(4, bytes.size() - 4)));
  BOOST_TEST((decode<provider_status>(bytes, "a status").value() == s));
}

BOOST_AUTO_TEST_CASE(a_request_comes_to_the_actor_of_its_service_and_the_reply_to_who_asked) {
  BOOST_TEST(ask_frame(count_request{"epochs", 2})->total == 2u);
  BOOST_TEST(ask_frame(count_request{"epochs", 3})->total == 5u);
  auto bad = ask_frame(count_request{"", 1});
  BOOST_TEST_REQUIRE(!bad.has_value());
  BOOST_TEST((bad.error().code() == errc::invalid_argument));
  BOOST_TEST(bad.error().detail() == "a counter without a name");
}

BOOST_AUTO_TEST_CASE(who_asks_comes_from_the_connection) {
  // Two peers, one name.
  BOOST_TEST(ask_frame(count_request{"epochs", 2, {random_id<peer_id>(), 7}})->total == 2u);
  channel = std::make_shared<answering_channel>(random_id<peer_id>(), "another");
  BOOST_TEST(ask_frame(count_request{"epochs", 1})->total == 1u);
}

BOOST_AUTO_TEST_CASE(what_a_connection_left_behind_goes_with_it) {
  BOOST_TEST(ask_frame(count_request{"epochs", 2})->total == 2u);
  session_of(*channel).on_close(*channel, {errc::peer_lost, "it is gone"});
  sched.run();
  sessions.clear();
  BOOST_TEST(ask_frame(count_request{"epochs", 1})->total == 1u);
}

BOOST_AUTO_TEST_CASE(a_handle_of_another_process_is_refused_wherever_in_the_message_it_is) {
  bulk_handle mine, others;
  mine.owner = channel->peer().id;
  mine.length_bytes = 100;
  others.owner = random_id<peer_id>();
  others.length_bytes = 100;
  BOOST_TEST(ask_frame(echo_request{"hello", {mine, mine}})->size_bytes == 200u);
  auto outcome = ask_frame(echo_request{"hello", {mine, others}});
  BOOST_TEST_REQUIRE(!outcome.has_value());
  BOOST_TEST((outcome.error().code() == errc::permission_denied));
}

BOOST_AUTO_TEST_CASE(what_this_node_does_not_serve_is_refused_by_name) {
  auto outcome = ask_frame(count_request{"epochs", 1}, "elsewhere");
  BOOST_TEST_REQUIRE(!outcome.has_value());
  BOOST_TEST((outcome.error().code() == errc::unavailable));
  BOOST_TEST(
    outcome.error().detail() == "this node has no provider elsewhere with the service counters");
  // Services that no provider of this node has.
  BOOST_TEST((refused(store_service::first_number, "here") == errc::unavailable));
  BOOST_TEST((refused(checkpoint_service::first_number, "here") == errc::unavailable));
}

BOOST_AUTO_TEST_CASE(numbers_of_no_service_are_refused) {
  for (std::uint16_t number : {0, 16, 31, 34, 63, 77, 895, 898, 65535})
    BOOST_TEST((refused(number, "here") == errc::unsupported), number);
}

BOOST_AUTO_TEST_CASE(bytes_that_are_no_request_end_the_connection) {
  auto whole = encode_request<counter_service>("here", count_request{"epochs", 1});
  for (std::size_t n = 0; n < whole.size(); ++n) {
    channel->closed = {};
    byte_buffer cut{whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n)};
    BOOST_TEST(!answer_to(cut).has_value());
    BOOST_TEST((channel->closed.code() == errc::protocol_error), n << " bytes of it");
  }
}

BOOST_AUTO_TEST_CASE(a_reply_that_cannot_be_sent_is_told_in_few_words) {
  auto outcome = ask_frame(echo_request{std::string(5000, 'x'), {}});
  BOOST_TEST_REQUIRE(!outcome.has_value());
  BOOST_TEST((outcome.error().code() == errc::invalid_argument));
  BOOST_TEST(channel->closed.ok());
}

BOOST_AUTO_TEST_CASE(a_peer_has_its_share_of_the_requests_under_way) {
  auto ask_without_waiting = [&] {
    return bring(*channel, encode_request<counter_service>("here", count_request{"epochs", 1}));
  };
  std::vector<std::uint64_t> asked(20);
  std::ranges::generate(asked, ask_without_waiting);
  auto another = std::make_shared<answering_channel>(random_id<peer_id>(), "another");
  std::swap(channel, another);
  auto other = ask_without_waiting();
  sched.run();
  BOOST_TEST(decode_reply<count_reply>(channel->replies.at(other)).has_value());
  auto answered = std::ranges::count_if(asked, [&](auto number) {
    auto reply = decode_reply<count_reply>(another->replies.at(number));
    BOOST_TEST((reply || reply.error().code() == errc::busy));
    return reply.has_value();
  });
  BOOST_TEST(answered == 8);
  // Places come back with the replies.
  std::swap(channel, another);
  BOOST_TEST(ask_frame(count_request{"epochs", 1}).has_value());
}

// One peer sends large requests and its answers are slow: others still get theirs.
BOOST_AUTO_TEST_CASE(a_peer_has_its_share_of_the_bytes_under_way) {
  auto large = encode_request<counter_service>("here", count_request{std::string(200'000, 'x'), 1});
  std::vector<std::uint64_t> asked;
  for (int i = 0; i < 5; ++i)
    asked.push_back(bring(*channel, large));
  auto load = connections->requests();
  BOOST_TEST(load.count == 3u);
  BOOST_TEST((load.size_bytes > 400'000u && load.size_bytes < 700'000u));
  auto another = std::make_shared<answering_channel>(random_id<peer_id>(), "another");
  std::swap(channel, another);
  BOOST_TEST(ask_frame(count_request{"epochs", 1}).has_value());
  sched.run();
  auto refused = std::ranges::count_if(asked, [&](auto number) {
    auto reply = decode_reply<count_reply>(another->replies.at(number));
    auto busy = !reply && reply.error().code() == errc::busy;
    BOOST_TEST((!busy || reply.error().detail().find("limits.requests_size") != std::string::npos));
    return busy;
  });
  BOOST_TEST(refused == 2);
  BOOST_TEST(connections->requests().size_bytes == 0u);
}

BOOST_AUTO_TEST_CASE(places_for_requests_are_kept_for_root_and_the_owner) {
  auto own = channel;
  own->set_user(0);
  auto body = encode_request<counter_service>("here", count_request{"epochs", 1});
  // As many hosts as there are places, with a request each.
  std::vector<std::shared_ptr<answering_channel>> strangers;
  for (int i = 0; i < 16; ++i) {
    strangers.push_back(std::make_shared<answering_channel>(random_id<peer_id>(), "stranger"));
    strangers.back()->set_address("192.0.2." + std::to_string(i + 1) + ":7710");
    bring(*strangers.back(), body);
  }
  BOOST_TEST(connections->requests().count == 15u);
  bring(*own, body);
  BOOST_TEST(connections->requests().count == 16u);
  sched.run();
  BOOST_TEST(decode_reply<count_reply>(own->replies.at(correlation)).has_value());
  BOOST_TEST(connections->requests().count == 0u);
}

BOOST_AUTO_TEST_CASE(a_request_older_than_its_time_is_not_begun) {
  auto ask_sent_at = [&](std::uint64_t sent_ms, std::uint32_t timeout_ms) {
    byte_buffer body;
    auto number = counter_service::number_of<count_request>();
    wire_writer{body}(
      request_head{"here", number, sent_ms, timeout_ms}, count_request{"epochs", 1});
    auto reply = answer_to(body);
    return reply ? decode_reply<count_reply>(*reply) : fail(reply.error());
  };
  // A clock of its own, and an hour between the first request and the last.
  constexpr std::uint64_t hour_ms = 3'600'000;
  BOOST_TEST(ask_sent_at(5 * hour_ms, 1000)->total == 1u);
  auto late = ask_sent_at(4 * hour_ms, 1000);
  BOOST_TEST_REQUIRE(!late.has_value());
  BOOST_TEST((late.error().code() == errc::deadline_exceeded), late.error().to_string());
  BOOST_TEST(ask_sent_at(4 * hour_ms, 2 * hour_ms)->total == 2u);
  // An older build names no time.
  BOOST_TEST(ask_sent_at(0, 0)->total == 3u);
  BOOST_TEST(ask_sent_at(5 * hour_ms, 1000)->total == 4u);
  for (auto odd : {~std::uint64_t{0}, std::uint64_t{1} << 63, std::uint64_t{0}})
    static_cast<void>(ask_sent_at(odd, 1));
  BOOST_TEST(channel->closed.ok());
}

BOOST_AUTO_TEST_CASE(the_clocks_of_two_hosts_may_drift_apart) {
  peer_clock clock;
  auto at = [](std::uint64_t ms) { return time_point{std::chrono::milliseconds{ms}}; };
  constexpr std::uint64_t start = 86'400'000, pause = 9000;
  BOOST_TEST(clock.age_ms(0, at(start)) == 0u);
  BOOST_TEST(clock.age_ms(1000, at(start + 1000)) == 0u);
  // The peer's clock stood still. That is forgotten, and ages are right again.
  auto later = start + 1000 + pause;
  BOOST_TEST(clock.age_ms(1000, at(later)) == pause);
  for (std::uint64_t ms = 0; ms <= 2 * peer_clock::period_ms; ms += 1000)
    clock.age_ms(1000 + ms, at(later + ms));
  auto now = 1000 + 2 * peer_clock::period_ms;
  BOOST_TEST(clock.age_ms(now, at(later + 2 * peer_clock::period_ms)) == 0u);
  BOOST_TEST(clock.age_ms(now - 5000, at(later + 2 * peer_clock::period_ms)) == 5000u);
}

BOOST_AUTO_TEST_CASE(requests_that_are_found_together_after_a_long_pause_are_old) {
  peer_clock clock;
  auto at = [](std::uint64_t ms) { return time_point{std::chrono::milliseconds{ms}}; };
  constexpr std::uint64_t start = 86'400'000, pause = 3'600'000;
  clock.age_ms(0, at(start));
  for (std::uint64_t sent = 1000; sent < 20'000; sent += 1000)
    BOOST_TEST(clock.age_ms(sent, at(start + pause)) == pause - sent);
  BOOST_TEST(clock.age_ms(pause, at(start + pause)) == 0u);
}

BOOST_AUTO_TEST_CASE(a_node_that_stops_refuses_every_request) {
  connections->refuse();
  BOOST_TEST((ask_frame(count_request{"epochs", 1}).error().code() == errc::unavailable));
}

BOOST_AUTO_TEST_CASE(an_actor_of_another_process_is_asked_by_frames) {
  node_in_memory node{*this};
  BOOST_TEST(node.ask_for<counter_service>(count_request{"epochs", 2})->total == 2u);
  BOOST_TEST(node.ask_for<counter_service>(echo_request{"hello", {}})->text == "hello");
  auto nameless = node.ask_for<counter_service>(count_request{"", 1});
  BOOST_TEST((nameless.error().code() == errc::invalid_argument));
  node.lost = {errc::peer_lost, "the service at memory is gone"};
  BOOST_TEST((node.ask_for<counter_service>(count_request{"epochs", 2}).error() == node.lost));
}

BOOST_AUTO_TEST_CASE(a_reply_that_comes_after_the_connection_has_ended_is_dropped) {
  bring(*channel, encode_request<counter_service>("here", count_request{"epochs", 2}));
  BOOST_TEST(connections->requests().count == 1u);
  session_of(*channel).on_close(*channel, {errc::peer_lost, "the trainer is gone"});
  BOOST_TEST(connections->requests().count == 0u);
  sched.run();
  BOOST_TEST(channel->replies.empty());
}

BOOST_AUTO_TEST_CASE(an_actor_of_this_process_is_found_without_the_wire) {
  BOOST_TEST((services->find<counter_service>("here") == counting));
  BOOST_TEST(!services->find<counter_service>("elsewhere"));
  BOOST_TEST(!services->find<checkpoint_service>("here"));
}

BOOST_AUTO_TEST_CASE(its_part_of_the_providers_status_is_in_that_of_the_node) {
  node_actor_deps deps;
  deps.own_state = [] { return node_status{}; };
  // A second part of the same provider, and another provider that does not answer.
  auto other = system.spawn<counters>("here", fabric, operation_limits{});
  auto silent = system.spawn<counters>("silent", fabric, operation_limits{});
  deps.actors = {{"here", {counting}}, {"here", {other}}, {"silent", {silent}}};
  caf::anon_send_exit(silent, caf::exit_reason::kill);
  auto node = spawn_node_actor(system, std::move(deps));
  ask_frame(count_request{"epochs", 1});
  auto asked = ask(other, count_request{"epochs", 1});
  BOOST_TEST(outcome<count_reply>(asked)->total == 1u);
  auto pending = ask(node, node_status_request{});
  auto status = outcome<node_status>(pending);
  BOOST_TEST_REQUIRE(status.has_value());
  BOOST_TEST_REQUIRE(status->providers.size() == 2u);
  BOOST_TEST(status->providers[0].name == "here");
  BOOST_TEST(status->providers[0].kind == "counters");
  BOOST_TEST(status->providers[0].used_bytes == 2u);
  BOOST_TEST(status->providers[1].name == "(no answer)");
  for (auto actor : {caf::actor_cast<caf::actor>(other), caf::actor_cast<caf::actor>(node)})
    caf::anon_send_exit(actor, caf::exit_reason::kill);
  sched.run();
}

BOOST_AUTO_TEST_CASE(every_message_comes_again_and_so_does_what_remains_when_it_is_cut) {
  auto check = []<class Service>() {
    each_message<Service>([]<class Message>() {
      auto bytes = encode(numbered<Message>());
      auto value = decode<Message>(bytes, "a message");
      BOOST_TEST_REQUIRE(value.has_value());
      BOOST_TEST((encode(*value) == bytes));
      for (std::size_t n = 0; n < bytes.size(); ++n)
        BOOST_TEST(comes_again<Message>({bytes.data(), n}));
    });
  };
  all_services::each(check);
  check.operator()<counter_service>();
}

BOOST_AUTO_TEST_SUITE_END()
