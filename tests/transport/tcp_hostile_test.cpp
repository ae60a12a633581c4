// Strangers and lying members at the streams of the tcp driver: refused, bounded, and others are unaffected.
#include "tcp_support.hpp"

#include <millrace/tests/support/kept_log.hpp>
#include <millrace/transport/refusal_log.hpp>
#include <millrace/transport/tcp/crc32c.hpp>

using namespace millrace;
using namespace millrace::transport;
using namespace millrace::transport::testing;
using namespace millrace::transport::tcp;
using millrace::testing::kept_log;

namespace {

// -- admissions -----------------------------------------------------------------------------------

struct at_the_gate : liar_and_victim {
  using liar_and_victim::liar_and_victim;
  at_the_gate() { announce_myself(); }
};

tcp_options impatient() {
  auto o = liar_and_victim::hostile_options();
  o.admission_timeout_ms = 100;
  o.admissions_per_source_max = 4;
  return o;
}

struct at_an_impatient_gate : liar_and_victim {
  at_an_impatient_gate() : liar_and_victim(impatient()) { announce_myself(); }
};

constexpr std::uint32_t few = 3;

tcp_options short_of_room() {
  auto o = liar_and_victim::hostile_options();
  o.transfers_max = few;
  return o;
}

struct with_room_for_few : liar_and_victim {
  with_room_for_few() : liar_and_victim(short_of_room()) { announce_myself(); }
};

// -- streams --------------------------------------------------------------------------------------

struct unit {
  unit_header header;
  byte_buffer rest;
};

struct on_a_stream : liar_and_victim {
  exposed_matrix readable{{1, 100'000, 0}, access_mode::read, 3};
  exposed_matrix writable{{1, 100'000, 0}, access_mode::write, 0};
  std::unique_ptr<raw_socket> s;

  explicit on_a_stream(const tcp_options& options = hostile_options()) : liar_and_victim(options) {
    announce_myself();
    open();
  }
  // The channel's frames and the stream take different ways: the victim may not know us yet.
  void open(std::uint16_t slot = 0) {
    BOOST_TEST_REQUIRE(eventually([&] {
      s = std::make_unique<raw_socket>(address());
      return admit(*s, own(slot), key);
    }));
  }

  struct asked {
    unit_kind kind = unit_kind::read;
    std::uint64_t number = 1;
    std::uint64_t region = 0;
    region_key key;
    std::vector<range> ranges;
    std::uint64_t length = 0;
    std::uint64_t extent = 0;
  };
  asked about(const exposed_matrix& m, std::uint64_t offset, std::uint64_t length) {
    asked a;
    a.kind = m.handle().allows == access_mode::read ? unit_kind::read : unit_kind::write;
    a.region = m.handle().region;
    a.key = m.handle().key;
    a.ranges = {{offset, length}};
    a.length = length;
    a.extent = offset + length;
    return a;
  }
  static byte_buffer request(const asked& a) {
    unit_header h;
    h.kind = a.kind;
    h.ranges = static_cast<std::uint16_t>(a.ranges.size());
    h.request = a.number;
    h.length = a.length;
    h.extent = a.extent;
    byte_buffer out(header_bytes + target_bytes + range_bytes * a.ranges.size());
    encode_header(h, out.data());
    encode_target(a.region, a.key, out.data() + header_bytes);
    for (std::size_t i = 0; i < a.ranges.size(); ++i)
      encode_range(a.ranges[i], out.data() + header_bytes + target_bytes + i * range_bytes);
    return out;
  }
  bool ask(const asked& a) { return s->write(request(a)); }
  bool send_memory(
    std::uint64_t number, std::uint64_t length, std::byte what, std::uint8_t code = 0,
    std::uint32_t crc = 0) {
    byte_buffer out(length + trailer_bytes, what);
    encode_trailer({number, crc, code}, out.data() + length);
    return s->write(out);
  }
  std::optional<unit> answer() {
    std::array<std::byte, header_bytes> head{};
    if (!s->read(head))
      return std::nullopt;
    unit u;
    u.header = decode_header(head).value();
    u.rest.resize(
      u.header.body_bytes() + (u.header.has_payload() ? u.header.length + trailer_bytes : 0));
    if (!s->read(u.rest))
      return std::nullopt;
    return u;
  }
  void refused_with(errc code) {
    auto u = answer();
    BOOST_TEST_REQUIRE(u.has_value());
    BOOST_TEST((u->header.kind == unit_kind::outcome));
    BOOST_TEST((static_cast<errc>(u->header.code) == code));
  }
  // The stream still works and the bytes are right.
  void served() {
    auto a = about(readable, 10, 1000);
    a.number = 4711;
    BOOST_TEST(ask(a));
    auto u = answer();
    BOOST_TEST_REQUIRE(u.has_value());
    BOOST_TEST((u->header.kind == unit_kind::data && u->header.request == 4711u));
    auto expected = pattern(1010, 3);
    BOOST_TEST(std::equal(expected.begin() + 10, expected.end(), u->rest.begin()));
  }
  bool nothing_written() {
    auto bytes = writable.dense();
    return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
  }

  // The victim asks us: what it wants is the next unit on the stream.
  std::vector<std::byte> room = std::vector<std::byte>(4096, std::byte{0x5a});
  held_completion<transfer_report> outcome;
  unit_header asked_by_victim(direction dir, std::uint64_t length = 4096) {
    bulk_handle h;
    h.owner = this_peer();
    h.region = 77;
    victim->submit({dir, h, {{0, room.data(), length}}, false, nullptr}, outcome.callback());
    auto u = answer();
    BOOST_TEST_REQUIRE(u.has_value());
    return u->header;
  }
  bool send_header(const unit_header& h) {
    byte_buffer out(header_bytes);
    encode_header(h, out.data());
    return s->write(out);
  }
  bool untouched() {
    return std::all_of(room.begin(), room.end(), [](std::byte b) { return b == std::byte{0x5a}; });
  }
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(tcp_gate, at_the_gate)

BOOST_AUTO_TEST_CASE(who_has_the_key_comes_in) {
  BOOST_TEST(eventually([&] {
    raw_socket s{address()};
    return admit(s, own(), key);
  }));
}

BOOST_AUTO_TEST_CASE(strange_bytes_are_refused) {
  auto before = refusals();
  for (auto text : {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "M", "MRSX", "\x16\x03\x01\x02\x00\x01"}) {
    raw_socket s{address()};
    std::string padded{text};
    padded.resize(64, 'x');
    BOOST_TEST(s.write(std::as_bytes(std::span{padded})));
    BOOST_TEST(s.thrown_out());
  }
  BOOST_TEST(refusals() == before + 4);
}

BOOST_AUTO_TEST_CASE(a_group_that_nobody_told_of_is_refused) {
  raw_socket s{address()};
  auto a = own();
  a.group[3] ^= 1;
  BOOST_TEST(!admit(s, a, key));
}

BOOST_AUTO_TEST_CASE(a_guessed_key_is_refused) {
  for (std::size_t byte : {0, 31}) {
    raw_socket s{address()};
    auto guessed = key;
    guessed[byte] ^= std::byte{1};
    BOOST_TEST(!admit(s, own(), guessed));
    BOOST_TEST(s.thrown_out());
  }
}

BOOST_AUTO_TEST_CASE(a_replayed_admission_is_refused) {
  admission_record said;
  BOOST_TEST_REQUIRE(eventually([&] {
    raw_socket s{address()};
    return admit(s, own(), key, &said);
  }));
  raw_socket replay{address()};
  BOOST_TEST(replay.write(said.first));
  admission_challenge fresh{};
  BOOST_TEST(replay.read(fresh));
  BOOST_TEST((fresh != said.challenge));
  BOOST_TEST(replay.write(said.proof));
  BOOST_TEST(replay.thrown_out());
}

BOOST_AUTO_TEST_CASE(a_stream_beyond_those_agreed_on_is_refused) {
  raw_socket s{address()};
  admit(s, own(3), key);
  BOOST_TEST(s.thrown_out());
  raw_socket zero{address()};
  auto a = own();
  a.serial = 0;
  admit(zero, a, key);
  BOOST_TEST(zero.thrown_out());
}

BOOST_AUTO_TEST_CASE(an_announcement_with_impossible_bounds_ends_the_channel) {
  announce nothing;
  say(message_kind::announce, nothing);
  BOOST_TEST(thrown_out());
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(tcp_slow_strangers, at_an_impatient_gate)

BOOST_AUTO_TEST_CASE(whoever_says_nothing_or_too_little_is_closed_in_time) {
  raw_socket silent{address()};
  raw_socket slow{address()};
  BOOST_TEST(slow.write(std::array{admission_first_byte}));
  BOOST_TEST(silent.thrown_out());
  BOOST_TEST(slow.thrown_out());
}

BOOST_AUTO_TEST_CASE(a_crowd_is_refused_and_members_come_in_afterwards) {
  std::vector<std::unique_ptr<raw_socket>> crowd;
  for (int i = 0; i < 200; ++i)
    crowd.push_back(std::make_unique<raw_socket>(address()));
  for (auto& s : crowd)
    BOOST_TEST(s->thrown_out());
  BOOST_TEST(eventually([&] {
    raw_socket s{address()};
    return admit(s, own(), key);
  }));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_CASE(ten_thousand_strangers_at_once_stay_within_the_bounds_and_members_come_in) {
  constexpr std::size_t strangers = 10'000, sources = 100;
  if (!room_for_descriptors(strangers + 1'000))
    return;
  kept_log lines;
  forget_refusals();
  at_an_impatient_gate gate;
  auto before = open_descriptors();
  std::size_t most = 0;
  // All of them stay at their end, whatever is said at ours.
  std::vector<std::unique_ptr<raw_socket>> held;
  auto whole = encode_admission(gate.own());
  byte_buffer some{whole.begin(), whole.begin() + 40};
  for (std::size_t i = 0; i < strangers; ++i) {
    auto source = "127.0.3." + std::to_string(i % sources + 1);
    held.push_back(std::make_unique<raw_socket>(gate.address(), source));
    if (i % 3 == 1)
      held.back()->write(some);
    else if (i % 3 == 2)
      held.back()->write(byte_buffer(64, std::byte{'x'}));
    if (i % 1000 != 999)
      continue;
    most = std::max(most, open_descriptors() - held.size());
    raw_socket member{gate.address()};
    BOOST_TEST(gate.admit(member, gate.own(), gate.key));
  }
  for (auto& s : held)
    BOOST_TEST(s->thrown_out());
  // Besides the strangers there may be the member and its stream before.
  BOOST_TEST(most <= before + impatient().admissions_max + 8);
  BOOST_TEST(lines.count("refused a connection") <= sources);
  BOOST_TEST(lines.count("from=127.0.3.1 ") == 1u);
}

BOOST_FIXTURE_TEST_SUITE(tcp_lying_submitters, on_a_stream)

BOOST_AUTO_TEST_CASE(
  a_wrong_key_a_foreign_region_and_a_range_outside_are_refused_and_the_stream_lives) {
  auto wrong = about(readable, 0, 100);
  wrong.key.bytes[5] ^= 1;
  BOOST_TEST(ask(wrong));
  refused_with(errc::permission_denied);
  auto foreign = about(readable, 0, 100);
  foreign.region += 100;
  BOOST_TEST(ask(foreign));
  refused_with(errc::permission_denied);
  for (auto offset : {99'901ull, ~0ull - 50, ~0ull}) {
    BOOST_TEST(ask(about(readable, offset, 100)));
    refused_with(errc::permission_denied);
  }
  auto beyond = about(readable, 0, 100);
  beyond.extent = 100'001;
  BOOST_TEST(ask(beyond));
  refused_with(errc::permission_denied);
  served();
}

BOOST_AUTO_TEST_CASE(memory_for_reading_cannot_be_written_and_the_bytes_go_nowhere) {
  auto a = about(readable, 0, 5000);
  a.kind = unit_kind::write;
  BOOST_TEST(ask(a));
  BOOST_TEST(send_memory(a.number, 5000, std::byte{0x66}));
  refused_with(errc::permission_denied);
  BOOST_TEST((readable.dense() == pattern(100'000, 3)));
  served();
}

BOOST_AUTO_TEST_CASE(a_write_outside_touches_nothing) {
  BOOST_TEST(ask(about(writable, 99'000, 1001)));
  BOOST_TEST(send_memory(1, 1001, std::byte{0x66}));
  refused_with(errc::permission_denied);
  BOOST_TEST(nothing_written());
  served();
}

BOOST_AUTO_TEST_CASE(a_write_that_its_sender_could_not_read_is_answered_so) {
  BOOST_TEST(ask(about(writable, 0, 1000)));
  BOOST_TEST(send_memory(1, 1000, std::byte{1}, static_cast<std::uint8_t>(errc::io_error)));
  refused_with(errc::io_error);
  served();
}

BOOST_AUTO_TEST_CASE(a_length_beyond_the_bound_ends_the_channel) {
  auto a = about(readable, 0, 100);
  a.length = a.ranges[0].length = (256u << 10) + 1;
  ask(a);
  BOOST_TEST(thrown_out());
}

BOOST_AUTO_TEST_CASE(ranges_that_do_not_add_up_end_the_channel) {
  auto a = about(readable, 0, 100);
  a.length = 101;
  ask(a);
  BOOST_TEST(thrown_out());
}

BOOST_AUTO_TEST_CASE(ranges_that_wrap_around_end_the_channel) {
  auto a = about(readable, 0, 100);
  a.ranges = {{0, ~0ull - 10}, {0, 111}};
  ask(a);
  BOOST_TEST(thrown_out());
}

BOOST_AUTO_TEST_CASE(a_unit_of_no_kind_ends_the_channel) {
  auto a = about(readable, 0, 100);
  a.kind = static_cast<unit_kind>(9);
  ask(a);
  BOOST_TEST(thrown_out());
}

BOOST_AUTO_TEST_CASE(bytes_nobody_asked_for_end_the_channel) {
  unit_header h;
  h.kind = unit_kind::data;
  h.request = 1;
  h.length = 100;
  BOOST_TEST(send_header(h));
  BOOST_TEST(thrown_out());
}

BOOST_AUTO_TEST_CASE(an_answer_nobody_waits_for_ends_the_channel) {
  unit_header h;
  h.kind = unit_kind::outcome;
  h.request = 1;
  BOOST_TEST(send_header(h));
  BOOST_TEST(thrown_out());
}

BOOST_AUTO_TEST_CASE(one_number_for_two_requests_ends_the_channel) {
  // In one packet, so that none is answered before the next has come.
  auto one = request(about(readable, 0, 1000));
  auto two = one;
  two.insert(two.end(), one.begin(), one.end());
  BOOST_TEST(s->write(two));
  BOOST_TEST(thrown_out());
}

BOOST_AUTO_TEST_CASE(more_requests_than_agreed_on_end_the_channel) {
  // Not read by us: the answers fill the sockets, and the requests remain.
  exposed_matrix much{{1, 16u << 20, 0}, access_mode::read, 1};
  auto a = about(much, 0, 256u << 10);
  for (a.number = 1; a.number < 200 && ask(a); ++a.number) {
  }
  BOOST_TEST(thrown_out());
}

BOOST_AUTO_TEST_CASE(who_asks_and_does_not_read_holds_up_nobody_else) {
  exposed_matrix much{{1, 16u << 20, 0}, access_mode::read, 1};
  auto a = about(much, 0, 256u << 10);
  for (a.number = 1; a.number <= 4; ++a.number)
    BOOST_TEST(ask(a));
  member other{*this};
  BOOST_TEST(other.is_served());
}

BOOST_AUTO_TEST_CASE(memory_is_withdrawn_although_its_reader_does_not_read) {
  exposed_matrix much{{1, 16u << 20, 0}, access_mode::read, 1};
  auto a = about(much, 0, 256u << 10);
  for (a.number = 1; a.number <= 4; ++a.number)
    BOOST_TEST(ask(a));
  much.withdraw(); // would not return if a lease were held meanwhile
  for (int i = 0; i < 4; ++i) {
    auto u = answer();
    BOOST_TEST_REQUIRE(u.has_value());
    BOOST_TEST((u->header.kind == unit_kind::data || u->header.kind == unit_kind::outcome));
  }
}

BOOST_AUTO_TEST_CASE(memory_is_withdrawn_although_its_writer_does_not_write) {
  BOOST_TEST(ask(about(writable, 0, 50'000)));
  BOOST_TEST(s->write(byte_buffer(10'000, std::byte{1})));
  eventually([&] { return writable.dense()[9'999] == std::byte{1}; });
  writable.withdraw();
  BOOST_TEST(s->write(byte_buffer(40'000, std::byte{2})));
  byte_buffer trailer(trailer_bytes);
  encode_trailer({1, 0, 0}, trailer.data());
  BOOST_TEST(s->write(trailer));
  refused_with(errc::permission_denied);
  auto bytes = writable.dense();
  BOOST_TEST((std::count(bytes.begin(), bytes.end(), std::byte{2}) == 0));
}

BOOST_AUTO_TEST_SUITE_END()

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
  victim->submit({direction::read, h, {{0, little.data(), 100}}, false, nullptr}, soon.callback());
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
    victim->submit({direction::read, h, {{0, room.data(), 100}}, false, nullptr}, d.callback());
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
    victim->submit({direction::read, h, {{0, room.data(), 4096}}, false, nullptr}, done.callback());
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
      {direction::read, h, {{0, others.data(), others.size()}}, false, nullptr}, done.callback());
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
    {direction::write, h, {{0, room.data(), room.size()}}, false, nullptr}, outcome.callback());
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
