// Tests strangers that connect to the tcp driver, and members that ask for what is not theirs. They
// are refused and bounded, and other members are served meanwhile.
#include "tcp_liar.hpp"

#include <millrace/net/channel/refusal_log.hpp>
#include <millrace/tests/support/kept_log.hpp>

using namespace millrace;
using namespace millrace::net;
using namespace millrace::net::testing;
using namespace millrace::transport;
using namespace millrace::transport::testing;
using namespace millrace::transport::tcp;
using millrace::testing::kept_log;

namespace {

// Admissions.

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

tcp_options patient() {
  auto o = impatient();
  o.admission_timeout_ms = 3'600'000;
  return o;
}

struct at_a_patient_gate : liar_and_victim {
  at_a_patient_gate() : liar_and_victim(patient()) { announce_myself(); }
};

struct at_an_impatient_gate : liar_and_victim {
  at_an_impatient_gate() : liar_and_victim(impatient()) { announce_myself(); }
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
  proof_record said;
  BOOST_TEST_REQUIRE(eventually([&] {
    raw_socket s{address()};
    return admit(s, own(), key, &said);
  }));
  raw_socket replay{address()};
  BOOST_TEST(replay.write(said.first));
  stream_challenge fresh{};
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

BOOST_AUTO_TEST_CASE(a_stranger_that_says_nothing_or_too_little_is_closed_in_time) {
  raw_socket silent{address()};
  raw_socket slow{address()};
  BOOST_TEST(slow.write(std::array{net::stream_acceptor::first_byte}));
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

BOOST_FIXTURE_TEST_CASE(of_too_many_strangers_the_oldest_gives_way_to_a_member, at_a_patient_gate) {
  BOOST_TEST_REQUIRE(eventually([&] {
    raw_socket s{address()};
    return admit(s, own(), key);
  }));
  std::vector<std::unique_ptr<raw_socket>> crowd;
  for (int i = 0; i < 40; ++i)
    crowd.push_back(std::make_unique<raw_socket>(address()));
  raw_socket member{address()};
  BOOST_TEST(admit(member, own(), key));
  for (int i = 0; i < 36; ++i)
    BOOST_TEST(crowd[static_cast<std::size_t>(i)]->thrown_out());
}

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
  auto whole = encode_claim(gate.own());
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
  beyond.region_end = 100'001;
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
  // Both requests go in one packet, so that the second comes before the first is answered.
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
