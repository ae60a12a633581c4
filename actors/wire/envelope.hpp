// Turns a typed message into a frame and back. Used by sessions and clients.
#pragma once

#include <millrace/actors/service.hpp>
#include <millrace/actors/wire/peer_clock.hpp>
#include <millrace/core/codec.hpp>
#include <millrace/core/thread_object.hpp>

#include <string>

namespace millrace::actors {

/// The beginning of every request frame.
struct request_head {
  std::string target;           // a provider's name; empty for the node itself
  std::uint16_t number = 0;     // the method's number, see `service`
  std::uint64_t sent_ms = 0;    // by the asker's monotonic clock
  std::uint32_t timeout_ms = 0; // the asker gives the request up this much later; 0: unknown
};
MILLRACE_INSPECT(request_head, x.target, x.number, x.sent_ms, x.timeout_ms)

/// The beginning of every reply frame.
struct reply_head {
  std::uint8_t code = 0; // an `errc`; if it is 0, the reply follows
  std::string detail;
};
MILLRACE_INSPECT(reply_head, x.code, x.detail)

/// A buffer for the bytes of one frame. Threads keep small ones, so that most frames need no new
/// memory.
class frame_buffer {
public:
  frame_buffer() {
    if (auto* of_thread = of_this_thread<kept>())
      bytes_ = std::move(of_thread->bytes);
    bytes_.clear();
  }
  ~frame_buffer() {
    if (bytes_.capacity() > kept_bytes_max)
      return;
    if (auto* of_thread = of_this_thread<kept>())
      of_thread->bytes = std::move(bytes_);
  }
  frame_buffer(const frame_buffer&) = delete;
  frame_buffer& operator=(const frame_buffer&) = delete;

  byte_buffer& bytes() noexcept { return bytes_; }

private:
  static constexpr std::size_t kept_bytes_max = 64u << 10;
  struct kept {
    byte_buffer bytes;
  };

  byte_buffer bytes_;
};

template <class Service, class Request>
void append_request(
  byte_buffer& out, const std::string& target, const Request& request,
  std::uint32_t timeout_ms = 0) {
  request_head head{target, Service::template number_of<Request>()};
  head.sent_ms = peer_clock::ms_of(steady_clock::now());
  head.timeout_ms = timeout_ms;
  wire_writer{out}(head, request);
}

template <class Service, class Request>
byte_buffer encode_request(
  const std::string& target, const Request& request, std::uint32_t timeout_ms = 0) {
  byte_buffer out;
  append_request<Service>(out, target, request, timeout_ms);
  return out;
}

template <class Reply>
void append_reply(byte_buffer& out, const Reply& reply) {
  wire_writer{out}(reply_head{}, reply);
}

template <class Reply>
byte_buffer encode_reply(const Reply& reply) {
  byte_buffer out;
  append_reply(out, reply);
  return out;
}

/// Encodes the reply to a request that failed.
inline byte_buffer encode_refusal(const status& why) {
  return encode(reply_head{static_cast<std::uint8_t>(why.code()), why.detail()});
}

template <class Reply>
result<Reply> decode_reply(std::span<const std::byte> body) {
  wire_reader reader{body};
  reply_head head;
  Reply reply{};
  if (reader(head) && head.code != 0)
    return fail(errc_from_wire(head.code), std::move(head.detail));
  if (!reader(reply))
    return fail(errc::protocol_error, "the provider's reply: {}", reader.fault());
  return reply;
}

} // namespace millrace::actors
