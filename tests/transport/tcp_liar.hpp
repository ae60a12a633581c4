// A liar with a stream of its own: asks a real fabric for memory, or is asked by it, unit by unit.
// Used by the tests of strangers and lying members.
#pragma once

#include "tcp_support.hpp"

namespace millrace::transport::testing {

struct unit {
  tcp::unit_header header;
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
    tcp::unit_kind kind = tcp::unit_kind::read;
    std::uint64_t number = 1;
    std::uint64_t region = 0;
    region_key key;
    std::vector<tcp::range> ranges;
    std::uint64_t length = 0;
    std::uint64_t region_end = 0;
  };
  asked about(const exposed_matrix& m, std::uint64_t offset, std::uint64_t length) {
    asked a;
    a.kind = m.handle().allows == access_mode::read ? tcp::unit_kind::read : tcp::unit_kind::write;
    a.region = m.handle().region;
    a.key = m.handle().key;
    a.ranges = {{offset, length}};
    a.length = length;
    a.region_end = offset + length;
    return a;
  }
  static byte_buffer request(const asked& a) {
    tcp::unit_header h;
    h.kind = a.kind;
    h.ranges = static_cast<std::uint16_t>(a.ranges.size());
    h.request = a.number;
    h.length = a.length;
    h.region_end = a.region_end;
    byte_buffer out(tcp::header_bytes + tcp::target_bytes + tcp::range_bytes * a.ranges.size());
    tcp::encode_header(h, out.data());
    tcp::encode_target(a.region, a.key, out.data() + tcp::header_bytes);
    for (std::size_t i = 0; i < a.ranges.size(); ++i)
      tcp::encode_range(
        a.ranges[i], out.data() + tcp::header_bytes + tcp::target_bytes + i * tcp::range_bytes);
    return out;
  }
  bool ask(const asked& a) { return s->write(request(a)); }
  bool send_memory(
    std::uint64_t number, std::uint64_t length, std::byte what, std::uint8_t code = 0,
    std::uint32_t crc = 0) {
    byte_buffer out(length + tcp::trailer_bytes, what);
    tcp::encode_trailer({number, crc, code}, out.data() + length);
    return s->write(out);
  }
  std::optional<unit> answer() {
    std::array<std::byte, tcp::header_bytes> head{};
    if (!s->read(head))
      return std::nullopt;
    unit u;
    u.header = tcp::decode_header(head).value();
    u.rest.resize(
      u.header.body_bytes() + (u.header.has_payload() ? u.header.length + tcp::trailer_bytes : 0));
    if (!s->read(u.rest))
      return std::nullopt;
    return u;
  }
  void refused_with(errc code) {
    auto u = answer();
    BOOST_TEST_REQUIRE(u.has_value());
    BOOST_TEST((u->header.kind == tcp::unit_kind::outcome));
    BOOST_TEST((static_cast<errc>(u->header.code) == code));
  }
  // The stream still works and the bytes are right.
  void served() {
    auto a = about(readable, 10, 1000);
    a.number = 4711;
    BOOST_TEST(ask(a));
    auto u = answer();
    BOOST_TEST_REQUIRE(u.has_value());
    BOOST_TEST((u->header.kind == tcp::unit_kind::data && u->header.request == 4711u));
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
  tcp::unit_header asked_by_victim(direction dir, std::uint64_t length = 4096) {
    bulk_handle h;
    h.owner = this_peer();
    h.region = 77;
    victim->submit(
      {.dir = dir, .remote = h, .ops = {{.local = room.data(), .length = length}}},
      outcome.callback());
    auto u = answer();
    BOOST_TEST_REQUIRE(u.has_value());
    return u->header;
  }
  bool send_header(const tcp::unit_header& h) {
    byte_buffer out(tcp::header_bytes);
    tcp::encode_header(h, out.data());
    return s->write(out);
  }
  bool untouched() {
    return std::all_of(room.begin(), room.end(), [](std::byte b) { return b == std::byte{0x5a}; });
  }
};

} // namespace millrace::transport::testing
