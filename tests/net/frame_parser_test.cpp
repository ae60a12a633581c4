// Cuts frames from streams, and reads hellos and goodbyes from untrusted bytes.
#include "channel_support.hpp"

using namespace millrace;
using namespace millrace::net;
using namespace millrace::net::testing;

namespace {

void append(byte_buffer& out, std::span<const std::byte> bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

void feed(frame_parser& parser, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    auto room = parser.room();
    auto n = std::min(room.size(), bytes.size());
    std::copy_n(bytes.begin(), n, room.begin());
    parser.commit(n);
    bytes = bytes.subspan(n);
  }
}

} // namespace

BOOST_AUTO_TEST_SUITE(frames)

BOOST_AUTO_TEST_CASE(frames_come_out_whole_however_the_stream_is_cut) {
  byte_buffer stream;
  for (std::uint32_t size : {0u, 1u, 23u, 24u, 25u, 70000u, 3u}) {
    append(stream, encode_header({frame_kind::driver, 0, size, size}));
    append(stream, bytes_of(size));
  }
  for (std::size_t step : {1u, 7u, 24u, 4096u, 100000u}) {
    frame_parser parser{1 << 20, 4};
    std::vector<std::uint64_t> sizes;
    for (std::size_t at = 0; at < stream.size(); at += step) {
      feed(parser, std::span{stream}.subspan(at, std::min(step, stream.size() - at)));
      while (auto f = *parser.next()) {
        BOOST_TEST(f->header.correlation == f->body.size());
        BOOST_TEST(std::ranges::equal(f->body, bytes_of(f->body.size())));
        sizes.push_back(f->body.size());
      }
    }
    BOOST_TEST(sizes.size() == 7u);
  }
}

BOOST_AUTO_TEST_CASE(memory_follows_the_bytes_received_not_those_claimed) {
  frame_parser parser{1u << 30, 4};
  feed(parser, encode_header({frame_kind::request, 0, 1u << 30, 1}));
  BOOST_REQUIRE(!*parser.next());
  feed(parser, bytes_of(100));
  BOOST_REQUIRE(!*parser.next());
  BOOST_TEST(parser.capacity_bytes() <= frame_parser::small_bytes);
  std::size_t received = 124;
  for (int i = 0; i < 64; ++i) {
    feed(parser, bytes_of(16384));
    BOOST_REQUIRE(!*parser.next());
    received += 16384;
    BOOST_TEST(parser.capacity_bytes() <= std::max(frame_parser::small_bytes, 2 * received));
  }
}

BOOST_AUTO_TEST_CASE(the_buffer_gets_small_again_after_a_large_frame) {
  frame_parser parser{1u << 24, 4};
  auto body = bytes_of(1u << 22);
  feed(parser, encode_header({frame_kind::request, 0, 1u << 22, 1}));
  for (std::size_t at = 0; at < body.size(); at += 65536) {
    BOOST_REQUIRE(!*parser.next());
    feed(parser, std::span{body}.subspan(at, 65536));
  }
  BOOST_REQUIRE(*parser.next());
  BOOST_TEST(parser.capacity_bytes() > body.size());
  parser.room();
  BOOST_TEST(parser.capacity_bytes() == frame_parser::small_bytes);
}

BOOST_AUTO_TEST_CASE(the_buffer_of_a_large_frame_does_not_stay_for_a_small_one_that_was_begun) {
  frame_parser parser{1u << 24, 4};
  byte_buffer stream;
  append(stream, encode_header({frame_kind::request, 0, 1u << 22, 1}));
  append(stream, bytes_of(1u << 22));
  append(stream, encode_header({frame_kind::request, 0, 100, 2}));
  for (std::size_t at = 0; at < stream.size(); at += 65536) {
    BOOST_REQUIRE(!*parser.next());
    feed(parser, std::span{stream}.subspan(at, std::min<std::size_t>(65536, stream.size() - at)));
  }
  BOOST_REQUIRE(*parser.next());
  BOOST_REQUIRE(!*parser.next());
  BOOST_TEST(parser.body_bytes_of_partial() == 100u);
  parser.free_returned();
  BOOST_TEST(parser.capacity_bytes() == frame_parser::small_bytes);
}

BOOST_AUTO_TEST_CASE(faults_are_named) {
  auto fault_of = [](encoded_header header) {
    frame_parser parser{1000, 2};
    feed(parser, header);
    auto next = parser.next();
    return next ? std::string{} : next.error().detail();
  };
  auto good = encode_header({frame_kind::request, 2, 1000, 7});
  BOOST_TEST(fault_of(good) == "");
  auto bad = good;
  bad[0] = std::byte{0};
  BOOST_TEST(fault_of(bad).find("not a frame") != std::string::npos);
  for (std::uint8_t kind : {0, 7, 15}) {
    bad = good;
    bad[3] = std::byte{kind};
    BOOST_TEST(fault_of(bad).find("reserved kind") != std::string::npos);
  }
  BOOST_TEST(
    fault_of(encode_header({frame_kind::request, 0, 1001, 0})).find("1001") != std::string::npos);
  BOOST_TEST(
    fault_of(encode_header({frame_kind::request, 3, 0, 0})).find("3 desc") != std::string::npos);
  BOOST_TEST(fault_of(encode_header({static_cast<frame_kind>(200), 0, 0, 0})) == "");
}

BOOST_AUTO_TEST_CASE(a_hello_survives_the_wire_and_every_truncation_is_refused) {
  auto h = raw_client::own_hello();
  auto bytes = encode(h);
  auto back = decode_hello(bytes);
  BOOST_REQUIRE(back);
  BOOST_TEST((*back == h));
  for (std::size_t n = 0; n < bytes.size(); ++n)
    BOOST_TEST(!decode_hello(std::span{bytes}.first(n)));
}

BOOST_AUTO_TEST_CASE(a_hello_that_makes_no_sense_is_refused) {
  auto refused = [](auto change) {
    auto h = raw_client::own_hello();
    change(h);
    auto bytes = encode(h);
    return !decode_hello(bytes);
  };
  BOOST_TEST(refused([](hello& h) { h.magic = "other"; }));
  BOOST_TEST(refused([](hello& h) { h.version_min = 0; }));
  BOOST_TEST(refused([](hello& h) { h.version_min = 9; }));
  BOOST_TEST(refused([](hello& h) { h.id = {}; }));
  BOOST_TEST(refused([](hello& h) { h.name = ""; }));
  BOOST_TEST(refused([](hello& h) { h.name = "\xff\xfe"; }));
  BOOST_TEST(refused([](hello& h) { h.name = std::string(257, 'x'); }));
  BOOST_TEST(refused([](hello& h) { h.frame_bytes_max = 1; }));
}

BOOST_AUTO_TEST_CASE(the_highest_common_version_is_agreed_on) {
  hello a, b;
  a.version_min = 2, a.version_max = 5, a.name = "a";
  b.version_min = 1, b.version_max = 4, b.name = "b";
  BOOST_TEST(*agree(a, b) == 4u);
  b.version_max = 1;
  auto none = agree(a, b);
  BOOST_REQUIRE(!none);
  BOOST_TEST((none.error().code() == errc::unsupported_version));
  BOOST_TEST(none.error().detail().find("2 to 5") != std::string::npos);
  BOOST_TEST(none.error().detail().find("1 to 1") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_goodbye_keeps_code_and_detail_within_bounds) {
  status why{errc::busy, "no room"};
  BOOST_TEST((decode_goodbye(encode_goodbye(why)) == why));
  std::string long_text;
  for (int i = 0; i < 3000; ++i)
    long_text += "\xc3\xa4";
  auto cut = encode_goodbye(status{errc::internal, long_text});
  BOOST_TEST(cut.size() <= handshake_bytes_max);
  BOOST_TEST((decode_goodbye(cut).code() == errc::internal));
  BOOST_TEST((decode_goodbye(bytes_of(3)).code() == errc::protocol_error));
}

BOOST_AUTO_TEST_SUITE_END()
