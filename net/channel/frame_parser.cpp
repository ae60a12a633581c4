// Frame headers, and the buffer that holds received frames.
// Used by channels.
#include <millrace/core/assert.hpp>
#include <millrace/net/channel/frame_parser.hpp>

#include <algorithm>
#include <cstring>

namespace millrace::net {

namespace {

constexpr std::uint16_t frame_magic = 0x524d; // "MR"
constexpr std::uint8_t frame_format = 1;

template <class T>
void put(encoded_header& out, std::size_t at, T value) noexcept {
  for (std::size_t i = 0; i < sizeof(T); ++i)
    out[at + i] = static_cast<std::byte>(value >> (8 * i));
}

template <class T>
T get(std::span<const std::byte, frame_header_bytes> in, std::size_t at) noexcept {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value = static_cast<T>(value | static_cast<T>(in[at + i]) << (8 * i));
  return value;
}

bool is_known_or_later(std::uint8_t kind) noexcept {
  return kind >= static_cast<std::uint8_t>(frame_kind::request) ||
    (kind >= static_cast<std::uint8_t>(frame_kind::hello) &&
     kind <= static_cast<std::uint8_t>(frame_kind::ring));
}

} // namespace

encoded_header encode_header(const frame_header& header) noexcept {
  encoded_header out{};
  put(out, 0, frame_magic);
  put(out, 2, frame_format);
  put(out, 3, static_cast<std::uint8_t>(header.kind));
  put(out, 5, header.fds);
  put(out, 8, header.body_bytes);
  put(out, 16, header.correlation);
  return out;
}

result<frame_header> decode_header(std::span<const std::byte, frame_header_bytes> bytes) {
  if (get<std::uint16_t>(bytes, 0) != frame_magic || get<std::uint8_t>(bytes, 2) != frame_format)
    return fail(errc::protocol_error, "not a frame of this protocol");
  auto kind = get<std::uint8_t>(bytes, 3);
  if (!is_known_or_later(kind))
    return fail(errc::protocol_error, "a frame of the reserved kind {}", kind);
  frame_header header;
  header.kind = static_cast<frame_kind>(kind);
  header.fds = get<std::uint8_t>(bytes, 5);
  header.body_bytes = get<std::uint32_t>(bytes, 8);
  header.correlation = get<std::uint64_t>(bytes, 16);
  return header;
}

void frame_parser::drop_rest() noexcept {
  begin_ = end_ = 0;
  header_.reset();
}

void frame_parser::free_returned() {
  if (begin_ == 0)
    return;
  end_ = pending_bytes();
  if (end_ > 0)
    std::memmove(data_.get(), data_.get() + begin_, end_);
  begin_ = 0;
  auto whole = header_ ? frame_header_bytes + header_->body_bytes : 0;
  if (auto needed = std::max({small_bytes, whole, end_}); capacity_ > needed)
    resize(needed);
}

std::span<std::byte> frame_parser::room() {
  free_returned();
  if (end_ == capacity_) {
    auto whole = frame_header_bytes + (header_ ? header_->body_bytes : 0);
    resize(std::max(small_bytes, std::min(std::max(whole, end_ + 1), 2 * capacity_)));
  }
  return {data_.get() + end_, capacity_ - end_};
}

void frame_parser::resize(std::size_t capacity) {
  MILLRACE_ASSERT(capacity >= end_);
  auto* grown = static_cast<std::byte*>(std::realloc(data_.get(), capacity));
  if (!grown)
    throw std::bad_alloc{};
  static_cast<void>(data_.release());
  data_.reset(grown);
  capacity_ = capacity;
}

result<std::optional<parsed_frame>> frame_parser::next() {
  auto known = read_header();
  if (!known)
    return fail(known.error());
  if (!*known || pending_bytes() - frame_header_bytes < header_->body_bytes)
    return std::nullopt;
  parsed_frame frame{*header_, {data_.get() + begin_ + frame_header_bytes, header_->body_bytes}};
  begin_ += frame_header_bytes + header_->body_bytes;
  header_.reset();
  return frame;
}

// True once the header of the frame at `begin_` is known and within bounds.
result<bool> frame_parser::read_header() {
  if (header_)
    return true;
  if (pending_bytes() < frame_header_bytes)
    return false;
  auto header = decode_header(
    std::span<const std::byte, frame_header_bytes>{data_.get() + begin_, frame_header_bytes});
  if (!header)
    return fail(header.error());
  if (header->body_bytes > body_bytes_max_)
    return fail(
      errc::protocol_error, "a frame of {} bytes where at most {} are allowed", header->body_bytes,
      body_bytes_max_);
  if (header->fds > fds_max_)
    return fail(
      errc::protocol_error, "a frame with {} descriptors where at most {} are allowed", header->fds,
      fds_max_);
  header_ = *header;
  return true;
}

std::uint32_t frame_parser::fds_of_partial() const noexcept {
  if (header_)
    return header_->fds;
  return pending_bytes() > 0 ? fds_max_ : 0;
}

} // namespace millrace::net
