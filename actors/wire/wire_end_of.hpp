// Makes the end of a service on the wire. It is slow to compile, so one source of each service
// includes it and says `template struct millrace::actors::wire_end<SERVICE>;`.
#pragma once

#include <millrace/actors/wire/envelope.hpp>
#include <millrace/actors/wire/handle_check.hpp>
#include <millrace/actors/wire/wire_end.hpp>

#include <algorithm>
#include <utility>

namespace millrace::actors {

template <class Service>
class request_reader_of : public request_reader {
public:
  explicit request_reader_of(actor_of<Service> actor) : actor_(std::move(actor)) {}

  status ask(std::uint16_t number, wire_reader& reader, peer_request request) const override {
    status bad;
    Service::each_method([&]<class Method>() {
      using message = typename Method::request;
      if (number == Service::template number_of<message>())
        bad = ask<message>(reader, std::move(request));
    });
    return bad;
  }

private:
  template <class Request>
  status ask(wire_reader& reader, peer_request asked) const {
    using reply = typename Service::template reply_of<Request>;
    Request request;
    if (!reader(request) && reader.over_budget()) {
      asked.back.refuse(
        {errc::invalid_argument,
         "the request describes more than fits in {} MiB; ask for less at a time",
         decode_limits{}.decoded_bytes_max >> 20});
      return {};
    }
    if (!reader.ok())
      return {errc::protocol_error, "a request: {}", reader.fault()};
    // The connection says whose memory a handle may name, never the message.
    if (handle_check check{asked.from.peer}; !check(request)) {
      asked.back.refuse(
        {errc::permission_denied, "the handle names memory of another process than the asker's"});
      return {};
    }
    if constexpr (requires { request.from; })
      request.from = asked.from;
    if constexpr (requires { request.timeout_ms; })
      request.timeout_ms = time_left_ms(request.timeout_ms, asked.age_ms);
    asked.port.ask(actor_, std::move(request), std::move(asked.back), &answer<reply>);
    return {};
  }

  template <class Reply>
  static void answer(const reply_path& back, caf::type_erased_tuple& content) {
    if (content.match_elements<caf::error>())
      return back.refuse(to_status(content.get_as<caf::error>(0)));
    if (!content.match_elements<Reply>())
      return back.refuse({errc::internal, "the provider answered with something else"});
    frame_buffer frame;
    append_reply(frame.bytes(), content.get_as<Reply>(0));
    back.answer(frame.bytes());
  }

  // 0 stays 0, which names no time.
  static std::uint32_t time_left_ms(std::uint32_t timeout_ms, std::uint64_t age_ms) {
    return age_ms < timeout_ms ? timeout_ms - static_cast<std::uint32_t>(age_ms)
                               : std::min(timeout_ms, 1u);
  }

  actor_of<Service> actor_;
};

template <class Service>
std::shared_ptr<const request_reader> wire_end<Service>::serve(actor_of<Service> actor) {
  return std::make_shared<request_reader_of<Service>>(std::move(actor));
}

} // namespace millrace::actors
