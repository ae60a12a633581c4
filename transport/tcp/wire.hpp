// The format of a bulk stream: a header, a short body, the bytes of memory, a trailer.
// Pure functions on bytes, used by `stream`.
#pragma once

#include <millrace/core/ids.hpp>
#include <millrace/core/status.hpp>

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace millrace::transport::tcp {

/// The kinds of units:
///
///     read     submitter → owner   header, target, ranges
///     write    submitter → owner   header, target, ranges, bytes, trailer
///     data     owner → submitter   header, bytes, trailer       answers a read
///     outcome  owner → submitter   header, words                answers a write, or refuses either
///
/// These values travel on the wire: append new ones, never renumber.
enum class unit_kind : std::uint8_t { read = 1, write = 2, data = 3, outcome = 4 };

inline constexpr std::size_t header_bytes = 32;
inline constexpr std::size_t target_bytes = 24;
inline constexpr std::size_t range_bytes = 16;
inline constexpr std::size_t trailer_bytes = 16;
inline constexpr std::size_t ranges_max = 512; // per request
inline constexpr std::size_t words_bytes_max = 512;
inline constexpr std::size_t body_bytes_max = target_bytes + ranges_max * range_bytes;

struct unit_header {
  unit_kind kind{};
  std::uint8_t code = 0;         // the `errc` of an outcome
  std::uint16_t ranges = 0;      // the number of a request's ranges
  std::uint32_t words_bytes = 0; // the length of an outcome's text
  std::uint64_t request = 0;     // the submitter's number
  std::uint64_t length = 0;      // bytes of memory requested, or that follow
  std::uint64_t region_end = 0;  // a request's: where the whole transfer ends in the region

  std::size_t body_bytes() const noexcept;
  /// Returns true if bytes of memory and a trailer follow the body.
  bool has_payload() const noexcept { return kind == unit_kind::write || kind == unit_kind::data; }
  friend bool operator==(const unit_header&, const unit_header&) = default;
};

struct range {
  std::uint64_t offset = 0; // in the region
  std::uint64_t length = 0;
  friend bool operator==(const range&, const range&) = default;
};

/// The body of a request.
struct unit_target {
  std::uint64_t region = 0;
  region_key key;
  std::vector<range> ranges;
};

/// The facts that are known only at the end of the bytes.
struct unit_trailer {
  std::uint64_t request = 0;
  std::uint32_t crc32c = 0; // where both sides agreed on checksums
  // An `errc`. If it is not 0, the bytes are void: the memory could not be reached to their end.
  std::uint8_t code = 0;
};

void encode_header(const unit_header& h, std::byte* out);
/// Decodes a header.
/// Errors:  `protocol_error` for one that no version of this driver sends.
result<unit_header> decode_header(std::span<const std::byte, header_bytes> bytes);

void encode_target(std::uint64_t region, const region_key& key, std::byte* out);
void encode_range(const range& r, std::byte* out);
/// Decodes the body of a request.
/// Errors:  `protocol_error` if the ranges do not add up to the header's length.
result<unit_target> decode_target(const unit_header& h, std::span<const std::byte> body);

void encode_trailer(const unit_trailer& t, std::byte* out);
unit_trailer decode_trailer(std::span<const std::byte, trailer_bytes> bytes);

} // namespace millrace::transport::tcp
