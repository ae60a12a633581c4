// Frames on the wire: encodes their headers and splits a byte stream into frames. Used by channels.
// It has no socket, so that a fuzzer can drive it.
#pragma once

#include <millrace/net/channel/channel.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>

namespace millrace::net {

/// The header before every body. On the wire, little endian:
/// magic u16, format u8, kind u8, flags u8 (ignored), descriptors u8, 0 u16, body u32, 0 u32,
/// correlation u64.
struct frame_header {
  frame_kind kind{};
  std::uint8_t fds = 0;
  std::uint32_t body_bytes = 0;
  std::uint64_t correlation = 0;

  friend bool operator==(const frame_header&, const frame_header&) = default;
};

inline constexpr std::size_t frame_header_bytes = 24;
using encoded_header = std::array<std::byte, frame_header_bytes>;

encoded_header encode_header(const frame_header& header) noexcept;

/// Errors: `protocol_error` for a wrong magic or format, or a kind below 16 that does not exist.
result<frame_header> decode_header(std::span<const std::byte, frame_header_bytes> bytes);

/// A whole frame inside the parser's buffer.
struct parsed_frame {
  frame_header header;
  std::span<const std::byte> body;
};

/// Splits received bytes into frames.
///
/// The buffer grows with the bytes received, never to the size that a header claims. It holds at
/// most twice the received bytes of the current frame (and at least `small_bytes`), and shrinks
/// again afterwards.
class frame_parser {
public:
  static constexpr std::size_t small_bytes = 32 * 1024;

  frame_parser(std::uint32_t body_bytes_max, std::uint32_t fds_max)
    : body_bytes_max_(body_bytes_max), fds_max_(fds_max) {}

  /// Applies to headers that are not complete yet.
  void set_body_bytes_max(std::uint32_t value) noexcept { body_bytes_max_ = value; }

  /// Where to receive into; never empty. Invalidates the frames returned before.
  std::span<std::byte> room();
  /// `size_bytes` of the room have been filled.
  void commit(std::size_t size_bytes) noexcept { end_ += size_bytes; }

  /// The next complete frame, or nothing until more bytes arrive. After an error the stream is
  /// unusable.
  /// Errors: `protocol_error` naming the fault.
  result<std::optional<parsed_frame>> next();

  /// Forgets the bytes behind the last frame. Frames that were returned stay valid.
  void drop_rest() noexcept;

  /// Frees the memory of the frames returned before, and invalidates them.
  void free_returned();

  /// How many descriptors may have arrived for the incomplete frame.
  std::uint32_t fds_of_partial() const noexcept;
  /// The size of the incomplete frame's body; 0 while its header is incomplete.
  std::uint32_t body_bytes_of_partial() const noexcept { return header_ ? header_->body_bytes : 0; }
  std::size_t capacity_bytes() const noexcept { return capacity_; }

private:
  struct free_bytes {
    void operator()(std::byte* p) const noexcept { std::free(p); }
  };

  std::size_t pending_bytes() const noexcept { return end_ - begin_; }
  result<bool> read_header();
  void resize(std::size_t capacity);

  std::uint32_t body_bytes_max_;
  std::uint32_t fds_max_;
  std::unique_ptr<std::byte[], free_bytes> data_;
  std::size_t capacity_ = 0;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  std::optional<frame_header> header_; // the header of the frame at `begin_`
};

} // namespace millrace::net
