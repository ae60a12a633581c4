// Encodes and decodes the format. Decoding checks every field.
#include <millrace/core/assert.hpp>
#include <millrace/transport/bytes.hpp>
#include <millrace/transport/tcp/wire.hpp>

namespace millrace::transport::tcp {

std::size_t unit_header::body_bytes() const noexcept {
  if (kind == unit_kind::outcome)
    return words_bytes;
  return kind == unit_kind::data ? 0 : target_bytes + ranges * range_bytes;
}

void encode_header(const unit_header& h, std::byte* out) {
  byte_writer w{out};
  w.number(h.kind);
  w.number(h.code);
  w.number(h.ranges);
  w.number(h.words_bytes);
  w.number(h.request);
  w.number(h.length);
  w.number(h.region_end);
  MILLRACE_ASSERT(w.at() == out + header_bytes);
}

result<unit_header> decode_header(std::span<const std::byte, header_bytes> bytes) {
  byte_reader r{bytes.data()};
  unit_header h;
  h.kind = r.number<unit_kind>();
  h.code = r.number<std::uint8_t>();
  h.ranges = r.number<std::uint16_t>();
  h.words_bytes = r.number<std::uint32_t>();
  h.request = r.number<std::uint64_t>();
  h.length = r.number<std::uint64_t>();
  h.region_end = r.number<std::uint64_t>();
  auto asks = h.kind == unit_kind::read || h.kind == unit_kind::write;
  if (!asks && h.kind != unit_kind::data && h.kind != unit_kind::outcome)
    return fail(errc::protocol_error, "a stream's unit of no known kind");
  if (h.ranges > ranges_max || h.words_bytes > words_bytes_max)
    return fail(errc::protocol_error, "a stream's unit with more ranges or words than it may have");
  if (!asks && (h.ranges > 0 || h.region_end > 0))
    return fail(errc::protocol_error, "an answer with the fields of a request");
  if (h.kind == unit_kind::outcome ? h.length > 0 : h.code > 0 || h.words_bytes > 0)
    return fail(errc::protocol_error, "a stream's unit with the fields of another");
  return h;
}

void encode_target(std::uint64_t region, const region_key& key, std::byte* out) {
  byte_writer w{out};
  w.number(region);
  w.raw(key.bytes.data(), key.bytes.size());
}

void encode_range(const range& x, std::byte* out) {
  byte_writer w{out};
  w.number(x.offset);
  w.number(x.length);
}

result<unit_target> decode_target(const unit_header& h, std::span<const std::byte> body) {
  MILLRACE_ASSERT(body.size() == target_bytes + h.ranges * range_bytes);
  byte_reader r{body.data()};
  unit_target out;
  out.region = r.number<std::uint64_t>();
  r.raw(out.key.bytes.data(), out.key.bytes.size());
  out.ranges.resize(h.ranges);
  auto left = h.length;
  for (auto& x : out.ranges) {
    x.offset = r.number<std::uint64_t>();
    x.length = r.number<std::uint64_t>();
    if (x.length > left)
      return fail(errc::protocol_error, "a request whose ranges are longer than the whole");
    left -= x.length;
  }
  if (left > 0)
    return fail(errc::protocol_error, "a request whose ranges are shorter than the whole");
  return out;
}

void encode_trailer(const unit_trailer& t, std::byte* out) {
  byte_writer w{out};
  w.number(t.request);
  w.number(t.crc32c);
  w.number(std::uint32_t{t.code});
}

unit_trailer decode_trailer(std::span<const std::byte, trailer_bytes> bytes) {
  byte_reader r{bytes.data()};
  unit_trailer t;
  t.request = r.number<std::uint64_t>();
  t.crc32c = r.number<std::uint32_t>();
  t.code = static_cast<std::uint8_t>(r.number<std::uint32_t>());
  return t;
}

} // namespace millrace::transport::tcp
