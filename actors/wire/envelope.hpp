// How a typed message becomes a frame and back. Used by sessions and proxies.
#pragma once

#include <millrace/actors/checkpoint/checkpoint_messages.hpp>
#include <millrace/actors/messages.hpp>
#include <millrace/core/codec.hpp>

#include <string>

namespace millrace::actors {

/// Which message a frame carries. The values travel on the wire: append, never renumber.
enum class message_kind : std::uint16_t {
  store = 1,
  load = 2,
  describe = 3,
  list = 4,
  erase = 5,
  pin = 6,
  resolve = 7,
  provider_status = 8,
  directory = 32,
  node_status = 33,
  enroll = 64,
  leave = 65,
  save = 66,
  durable = 67,
  restore = 68,
  list_checkpoints = 69,
  describe_shard = 70,
  verify = 71,
  erase_checkpoint = 72,
  repack = 73,
};

/// Ties a request to its kind and its reply.
template <class Request>
struct message_traits;

#define MILLRACE_MESSAGE(request, reply, number)                                                   \
  template <>                                                                                      \
  struct message_traits<request> {                                                                 \
    using reply_type = reply;                                                                      \
    static constexpr auto kind = message_kind::number;                                             \
  };
MILLRACE_MESSAGE(store_request, store_receipt, store)
MILLRACE_MESSAGE(load_request, load_receipt, load)
MILLRACE_MESSAGE(describe_request, model_record, describe)
MILLRACE_MESSAGE(list_request, model_list, list)
MILLRACE_MESSAGE(erase_request, done_reply, erase)
MILLRACE_MESSAGE(pin_request, done_reply, pin)
MILLRACE_MESSAGE(resolve_request, layer_list, resolve)
MILLRACE_MESSAGE(provider_status_request, provider_status, provider_status)
MILLRACE_MESSAGE(directory_request, directory, directory)
MILLRACE_MESSAGE(node_status_request, node_status, node_status)
MILLRACE_MESSAGE(enroll_request, enroll_receipt, enroll)
MILLRACE_MESSAGE(leave_request, done_reply, leave)
MILLRACE_MESSAGE(save_request, save_receipt, save)
MILLRACE_MESSAGE(durable_request, save_receipt, durable)
MILLRACE_MESSAGE(restore_request, load_receipt, restore)
MILLRACE_MESSAGE(list_checkpoints_request, checkpoint_list, list_checkpoints)
MILLRACE_MESSAGE(describe_shard_request, shard_spec, describe_shard)
MILLRACE_MESSAGE(verify_request, verify_receipt, verify)
MILLRACE_MESSAGE(erase_checkpoint_request, done_reply, erase_checkpoint)
MILLRACE_MESSAGE(repack_request, repack_receipt, repack)
#undef MILLRACE_MESSAGE

template <class Request>
using reply_of = typename message_traits<Request>::reply_type;

/// Opens every request frame.
struct request_head {
  std::string target; // a provider's name; empty for the node itself
  message_kind kind{};
};

/// Opens every reply frame.
struct reply_head {
  std::uint8_t code = 0; // an `errc`; the reply itself follows when it is 0
  std::string detail;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, request_head& x) {
  return f(x.target, x.kind);
}

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, reply_head& x) {
  return f(x.code, x.detail);
}

template <class Request>
byte_buffer encode_request(const std::string& target, const Request& request) {
  byte_buffer out;
  wire_writer{out}(request_head{target, message_traits<Request>::kind}, request);
  return out;
}

template <class Reply>
byte_buffer encode_reply(const result<Reply>& reply) {
  byte_buffer out;
  wire_writer writer{out};
  if (reply)
    writer(reply_head{}, *reply);
  else
    writer(reply_head{static_cast<std::uint8_t>(reply.error().code()), reply.error().detail()});
  return out;
}

template <class Reply>
result<Reply> decode_reply(std::span<const std::byte> body) {
  wire_reader reader{body};
  reply_head head;
  Reply reply{};
  if (reader(head) && head.code != 0)
    return fail(errc_from_wire(head.code), std::move(head.detail));
  if (!reader(reply))
    return fail(errc::protocol_error, std::string{"the provider's reply: "} + reader.fault());
  return reply;
}

} // namespace millrace::actors
