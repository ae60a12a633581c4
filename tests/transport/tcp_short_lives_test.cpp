// Tests members that leave while their streams are being admitted. They do not count as strangers.
#include "tcp_liar.hpp"

#include <millrace/net/channel/refusal_log.hpp>
#include <millrace/tests/support/kept_log.hpp>

using namespace millrace;
using namespace millrace::net;
using namespace millrace::transport;
using namespace millrace::transport::testing;
using millrace::testing::kept_log;

namespace {

tcp_options with_many_streams() {
  auto o = small_options();
  o.streams = 16;
  return o;
}

struct short_lives : pair_of_fabrics {
  short_lives() : pair_of_fabrics(with_many_streams()) { settle(); }

  kept_log lines;
  std::uint64_t before = refusals();
};

/// A peer whose stream has named its group and been challenged.
struct half_admitted : liar_and_victim {
  half_admitted() {
    announce_myself();
    auto a = own();
    random_bytes(a.nonce.data(), a.nonce.size());
    first = tcp::encode_claim(a);
    BOOST_TEST_REQUIRE(s->write(first));
    BOOST_TEST_REQUIRE(s->read(challenge));
  }
  void leave() {
    liar->close({});
    BOOST_TEST_REQUIRE(handler->wait_closed());
  }

  std::unique_ptr<raw_socket> s = std::make_unique<raw_socket>(address());
  tcp::claim_message first{};
  tcp::stream_challenge challenge{};
  std::uint64_t before = refusals();
};

} // namespace

BOOST_FIXTURE_TEST_SUITE(tcp_short_lives, short_lives)

BOOST_AUTO_TEST_CASE(channels_that_close_while_their_streams_are_admitted_are_no_strangers) {
  for (int i = 0; i < 200; ++i) {
    connect();
    // The member ends at any point of its proofs.
    std::this_thread::sleep_for(std::chrono::microseconds{20 * (i % 20)});
    link->close({});
  }
  settle();
  BOOST_TEST(refusals() == before, lines.text());
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(tcp_half_admitted, half_admitted)

BOOST_AUTO_TEST_CASE(a_stream_that_comes_after_its_channel_has_closed_is_no_stranger) {
  leave();
  raw_socket late{address()};
  BOOST_TEST(!admit(late, own(), key));
  BOOST_TEST(late.thrown_out());
  BOOST_TEST(refusals() == before);
}

BOOST_AUTO_TEST_CASE(a_stream_that_proves_itself_after_its_channel_has_closed_is_no_stranger) {
  leave();
  BOOST_TEST(s->write(tcp::prove_connector(key, first, challenge)));
  BOOST_TEST(s->thrown_out());
  BOOST_TEST(refusals() == before);
}

BOOST_AUTO_TEST_CASE(a_member_that_ends_within_its_admission_is_no_stranger) {
  s = nullptr;
  // Those that come after it are answered after it.
  raw_socket stranger{address()};
  BOOST_TEST(stranger.write(byte_buffer(64, std::byte{'x'})));
  BOOST_TEST(stranger.thrown_out());
  BOOST_TEST(refusals() == before + 1);
}

BOOST_AUTO_TEST_CASE(who_connects_and_leaves_without_a_word_is_not_refused) {
  { raw_socket silent{address()}; }
  raw_socket stranger{address()};
  BOOST_TEST(stranger.write(byte_buffer(64, std::byte{'x'})));
  BOOST_TEST(stranger.thrown_out());
  BOOST_TEST(refusals() == before + 1);
}

BOOST_AUTO_TEST_CASE(a_wrong_proof_for_a_channel_that_has_closed_is_refused) {
  leave();
  auto guessed = key;
  guessed[7] ^= std::byte{1};
  BOOST_TEST(s->write(tcp::prove_connector(guessed, first, challenge)));
  BOOST_TEST(s->thrown_out());
  BOOST_TEST(refusals() == before + 1);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_CASE(a_stream_that_comes_before_its_peers_announcement_is_no_stranger) {
  liar_and_victim early;
  auto before = refusals();
  raw_socket s{early.address()};
  early.admit(s, early.own(), early.key);
  BOOST_TEST(s.thrown_out());
  BOOST_TEST(refusals() == before);
  early.announce_myself();
  BOOST_TEST(eventually([&] {
    raw_socket again{early.address()};
    return early.admit(again, early.own(), early.key);
  }));
  BOOST_TEST(refusals() == before);
}
