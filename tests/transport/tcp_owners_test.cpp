// Tests owners of memory that lie, wait, or stall, at the other end of the tcp driver's streams.
#include "tcp_liar.hpp"

#include <millrace/transport/tcp/crc32c.hpp>

using namespace millrace;
using namespace millrace::net;
using namespace millrace::transport;
using namespace millrace::transport::testing;
using namespace millrace::transport::tcp;

namespace {

constexpr std::uint32_t few = 3;

tcp_options short_of_room() {
  auto o = liar_and_victim::hostile_options();
  o.transfers_max = few;
  return o;
}

struct with_room_for_few : liar_and_victim {
  with_room_for_few() : liar_and_victim(short_of_room()) { announce_myself(); }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(tcp_slow_owners, on_a_stream)

BOOST_AUTO_TEST_CASE(of_a_large_transfer_no_more_is_asked_for_than_may_be_in_flight) {
  auto chunk = hostile_options().chunk_bytes;
  auto chunks = hostile_options().inflight_bytes_max / chunk;
  room.resize(8 * chunk);
  auto first = asked_by_victim(direction::read, room.size());
  for (std::uint64_t i = 1; i < chunks; ++i)
    BOOST_TEST(answer()->header.length == chunk);
  // A small one waits for none of them; that its request is the next shows that there is no other.
  std::vector<std::byte> little(100);
  held_completion<transfer_report> soon;
  bulk_handle h;
  h.owner = this_peer();
  victim->submit(
    {.dir = direction::read, .remote = h, .ops = {{.local = little.data(), .length = 100}}},
    soon.callback());
  auto small = answer();
  BOOST_TEST_REQUIRE(small.has_value());
  BOOST_TEST(small->header.length == 100u);
  BOOST_TEST(s->waiting() == 0u);
  BOOST_TEST(send_header({unit_kind::data, 0, 0, 0, small->header.request, 100, 0}));
  BOOST_TEST(send_memory(small->header.request, 100, std::byte{7}));
  BOOST_TEST(soon.take().has_value());
  // Each answer makes room for one more.
  BOOST_TEST(send_header({unit_kind::data, 0, 0, 0, first.request, chunk, 0}));
  BOOST_TEST(send_memory(first.request, chunk, std::byte{7}));
  BOOST_TEST(answer()->header.length == chunk);
  {
    member other{*this};
    BOOST_TEST(other.is_served());
  }
  liar->close({errc::unavailable, "enough"});
  BOOST_TEST(!outcome.take().has_value());
}

BOOST_AUTO_TEST_CASE(small_requests_beyond_the_bound_wait_for_answers) {
  auto most = hostile_options().requests_max;
  std::vector<held_completion<transfer_report>> done(most + 2);
  std::vector<unit_header> asked;
  bulk_handle h;
  h.owner = this_peer();
  for (auto& d : done)
    victim->submit(
      {.dir = direction::read, .remote = h, .ops = {{.local = room.data(), .length = 100}}},
      d.callback());
  for (std::uint32_t i = 0; i < most; ++i)
    asked.push_back(answer()->header);
  BOOST_TEST(s->waiting() == 0u);
  for (std::size_t i = 0; i < done.size(); ++i) {
    BOOST_TEST(send_header({unit_kind::data, 0, 0, 0, asked.at(i).request, 100, 0}));
    BOOST_TEST(send_memory(asked[i].request, 100, std::byte{7}));
    if (asked.size() < done.size())
      asked.push_back(answer()->header);
  }
  for (auto& d : done)
    BOOST_TEST(d.take().has_value());
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(tcp_full, with_room_for_few)

BOOST_AUTO_TEST_CASE(transfers_beyond_the_bound_are_busy_and_end_with_their_peer) {
  std::vector<held_completion<transfer_report>> waiting(few);
  std::vector<std::byte> room(4096);
  bulk_handle h;
  h.owner = this_peer();
  auto submit = [&](auto& done) {
    victim->submit(
      {.dir = direction::read, .remote = h, .ops = {{.local = room.data(), .length = 4096}}},
      done.callback());
  };
  for (auto& w : waiting)
    submit(w);
  held_completion<transfer_report> refused;
  submit(refused);
  auto outcome = refused.take();
  BOOST_TEST_REQUIRE(!outcome.has_value());
  BOOST_TEST((outcome.error().code() == errc::busy));
  member other{*this};
  BOOST_TEST(other.is_served());
  liar->close({errc::unavailable, "enough"});
  for (auto& w : waiting)
    BOOST_TEST(!w.take().has_value());
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(tcp_lying_owners, on_a_stream)

BOOST_AUTO_TEST_CASE(more_bytes_than_asked_for_end_the_channel) {
  auto h = asked_by_victim(direction::read);
  BOOST_TEST(send_header({unit_kind::data, 0, 0, 0, h.request, 4097, 0}));
  BOOST_TEST(thrown_out());
  BOOST_TEST(!outcome.take().has_value());
  BOOST_TEST(untouched());
}

BOOST_AUTO_TEST_CASE(bytes_for_another_request_end_the_channel) {
  auto h = asked_by_victim(direction::read);
  BOOST_TEST(send_header({unit_kind::data, 0, 0, 0, h.request + 1, 4096, 0}));
  BOOST_TEST(thrown_out());
  BOOST_TEST(!outcome.take().has_value());
  BOOST_TEST(untouched());
}

BOOST_AUTO_TEST_CASE(bytes_for_a_write_end_the_channel) {
  auto h = asked_by_victim(direction::write);
  BOOST_TEST(send_header({unit_kind::data, 0, 0, 0, h.request, 4096, 0}));
  BOOST_TEST(thrown_out());
  BOOST_TEST(!outcome.take().has_value());
  BOOST_TEST(untouched());
}

BOOST_AUTO_TEST_CASE(a_read_answered_without_bytes_ends_the_channel) {
  auto h = asked_by_victim(direction::read);
  BOOST_TEST(send_header({unit_kind::outcome, 0, 0, 0, h.request, 0, 0}));
  BOOST_TEST(thrown_out());
  BOOST_TEST(!outcome.take().has_value());
}

BOOST_AUTO_TEST_CASE(the_same_answer_twice_ends_the_channel) {
  auto h = asked_by_victim(direction::read);
  for (int i = 0; i < 2; ++i) {
    BOOST_TEST(send_header({unit_kind::data, 0, 0, 0, h.request, 4096, 0}));
    send_memory(h.request, 4096, std::byte{9});
  }
  BOOST_TEST(outcome.take().has_value());
  BOOST_TEST((room == std::vector<std::byte>(4096, std::byte{9})));
  BOOST_TEST(thrown_out());
}

BOOST_AUTO_TEST_CASE(the_words_of_a_refusal_are_bounded) {
  auto h = asked_by_victim(direction::read);
  BOOST_TEST(send_header({unit_kind::outcome, 4, 0, 1u << 30, h.request, 0, 0}));
  BOOST_TEST(thrown_out());
  BOOST_TEST(!outcome.take().has_value());
}

BOOST_AUTO_TEST_SUITE_END()

namespace {

tcp_options hasty() {
  auto o = liar_and_victim::hostile_options();
  o.stall_timeout_ms = 200;
  o.send_buffer_bytes = 32u << 10; // so that what is not read remains to be sent
  return o;
}

struct silent_owner : liar_and_victim {
  silent_owner() : liar_and_victim(hasty()) { announce_myself(); }
};

} // namespace

BOOST_FIXTURE_TEST_CASE(an_owner_that_never_answers_ends_the_transfer_in_time, silent_owner) {
  std::unique_ptr<raw_socket> s;
  BOOST_TEST_REQUIRE(eventually([&] {
    s = std::make_unique<raw_socket>(address());
    return admit(*s, own(), key);
  }));
  std::vector<std::byte> room(4096);
  bulk_handle h;
  h.owner = this_peer();
  auto moved = move(*victim, direction::read, h, room.data(), room.size());
  BOOST_TEST((!moved && moved.error().code() == errc::deadline_exceeded));
}

namespace {

struct busy_owner : on_a_stream {
  busy_owner() : on_a_stream(hasty()) {}
  // Does something again and again, until the transfer ends or the stream does.
  template <class F>
  void keep_moving(F step) {
    for (int i = 0; i < 3000 && !outcome.ready() && step(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds{10});
    BOOST_TEST_REQUIRE(eventually([&] { return outcome.ready(); }));
    auto moved = outcome.take();
    BOOST_TEST_REQUIRE(!moved.has_value());
    BOOST_TEST((moved.error().code() == errc::deadline_exceeded), moved.error().to_string());
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(tcp_busy_owners, busy_owner)

BOOST_AUTO_TEST_CASE(an_owner_that_only_asks_itself_ends_the_transfer_in_time) {
  asked_by_victim(direction::read);
  auto a = about(readable, 0, 100'000);
  keep_moving([&] {
    auto served = ask(a) && answer();
    ++a.number;
    return served;
  });
}

BOOST_AUTO_TEST_CASE(an_owner_that_answers_others_first_ends_the_transfer_in_time) {
  asked_by_victim(direction::read);
  std::vector<std::byte> others(4096);
  bulk_handle h;
  h.owner = this_peer();
  keep_moving([&] {
    held_completion<transfer_report> done;
    victim->submit(
      {.dir = direction::read,
       .remote = h,
       .ops = {{.local = others.data(), .length = others.size()}}},
      done.callback());
    auto u = answer();
    return u && send_header({unit_kind::data, 0, 0, 0, u->header.request, others.size(), 0}) &&
      send_memory(u->header.request, others.size(), std::byte{1}) && done.take().has_value();
  });
}

BOOST_AUTO_TEST_CASE(an_answer_that_drips_ends_the_transfer_in_time) {
  room.resize(100'000);
  auto h = asked_by_victim(direction::read, room.size());
  BOOST_TEST(send_header({unit_kind::data, 0, 0, 0, h.request, h.length, 0}));
  keep_moving([&] { return s->write(byte_buffer(8, std::byte{1})); });
}

BOOST_AUTO_TEST_CASE(a_write_that_drips_away_ends_in_time) {
  room.resize(1u << 20);
  bulk_handle h;
  h.owner = this_peer();
  victim->submit(
    {.dir = direction::write, .remote = h, .ops = {{.local = room.data(), .length = room.size()}}},
    outcome.callback());
  std::array<std::byte, 1024> little;
  keep_moving([&] { return s->read(little); });
}

BOOST_AUTO_TEST_SUITE_END()

namespace {

tcp_options checked() {
  auto o = liar_and_victim::hostile_options();
  o.checksum = true;
  return o;
}

struct with_checksums : on_a_stream {
  with_checksums() : on_a_stream(checked()) {}
  static std::uint32_t crc_of(std::uint64_t length, std::byte what) {
    byte_buffer bytes(length, what);
    iovec all{bytes.data(), bytes.size()};
    return add_crc32c(0, {&all, 1}, length);
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(tcp_checksums, with_checksums)

BOOST_AUTO_TEST_CASE(bytes_with_their_checksum_are_taken) {
  auto h = asked_by_victim(direction::read);
  BOOST_TEST(send_header({unit_kind::data, 0, 0, 0, h.request, 4096, 0}));
  BOOST_TEST(send_memory(h.request, 4096, std::byte{7}, 0, crc_of(4096, std::byte{7})));
  auto moved = outcome.take();
  BOOST_TEST(moved.has_value(), millrace::testing::why(moved));
  BOOST_TEST((room == std::vector<std::byte>(4096, std::byte{7})));
  auto a = about(writable, 0, 1000);
  BOOST_TEST(ask(a));
  BOOST_TEST(send_memory(a.number, 1000, std::byte{7}, 0, crc_of(1000, std::byte{7})));
  refused_with(errc::ok);
}

BOOST_AUTO_TEST_CASE(an_answer_with_another_checksum_ends_its_stream_and_is_not_reported_good) {
  auto h = asked_by_victim(direction::read);
  BOOST_TEST(send_header({unit_kind::data, 0, 0, 0, h.request, 4096, 0}));
  BOOST_TEST(send_memory(h.request, 4096, std::byte{7}, 0, crc_of(4096, std::byte{7}) ^ 1));
  BOOST_TEST(s->thrown_out());
  auto moved = outcome.take();
  BOOST_TEST_REQUIRE(!moved.has_value());
  BOOST_TEST((moved.error().code() == errc::corrupt_data), moved.error().to_string());
  BOOST_TEST(liar->is_open());
}

BOOST_AUTO_TEST_CASE(a_write_with_another_checksum_ends_its_stream_unanswered) {
  auto a = about(writable, 0, 1000);
  BOOST_TEST(ask(a));
  BOOST_TEST(send_memory(a.number, 1000, std::byte{7}, 0, crc_of(1000, std::byte{7}) ^ 1));
  BOOST_TEST(!answer().has_value());
  BOOST_TEST(liar->is_open());
}

BOOST_AUTO_TEST_SUITE_END()

namespace {

tcp_options secret() {
  auto o = liar_and_victim::hostile_options();
  o.encrypt = true;
  return o;
}

struct clear_text : liar_and_victim {
  clear_text() : liar_and_victim(secret()) { announce_myself(); }
};

} // namespace

BOOST_FIXTURE_TEST_CASE(clear_text_is_not_understood_where_streams_are_encrypted, clear_text) {
  std::unique_ptr<raw_socket> s;
  BOOST_TEST_REQUIRE(eventually([&] {
    s = std::make_unique<raw_socket>(address());
    return admit(*s, own(), key);
  }));
  exposed_matrix memory{{1, 1000, 0}, access_mode::write, 0};
  byte_buffer out(header_bytes + target_bytes + range_bytes + 1000 + trailer_bytes, std::byte{7});
  encode_header({unit_kind::write, 0, 1, 0, 1, 1000, 1000}, out.data());
  encode_target(memory.handle().region, memory.handle().key, out.data() + header_bytes);
  encode_range({0, 1000}, out.data() + header_bytes + target_bytes);
  encode_trailer({1, 0, 0}, out.data() + out.size() - trailer_bytes);
  s->write(out);
  BOOST_TEST(s->thrown_out());
  BOOST_TEST((memory.dense() == std::vector<std::byte>(1000)));
}
