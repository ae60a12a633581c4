// Makes the two ends of a service on the wire. It is slow to compile, so one source of each service
// includes it and says `template struct millrace::actors::wire_ends<SERVICE>;`.
#pragma once

#include <millrace/actors/caller.hpp>
#include <millrace/actors/delivery.hpp>
#include <millrace/actors/open_answers.hpp>
#include <millrace/actors/supervision.hpp>
#include <millrace/actors/wire/envelope.hpp>
#include <millrace/actors/wire/handle_check.hpp>
#include <millrace/actors/wire/wire_ends.hpp>

#include <caf/actor_addr.hpp>
#include <caf/typed_event_based_actor.hpp>

namespace millrace::actors {

template <class Service>
class request_reader_of : public request_reader {
public:
  explicit request_reader_of(actor_of<Service> actor) : actor_(std::move(actor)) {}

  status ask(
    std::uint16_t number, wire_reader& reader, const peer_request& request) const override {
    status bad;
    Service::each_method([&]<class Method>() {
      using message = typename Method::request;
      if (number == Service::template number_of<message>())
        bad = ask<message>(reader, request);
    });
    return bad;
  }

private:
  template <class Request>
  status ask(wire_reader& reader, const peer_request& asked) const {
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
    ask_as<reply>(
      asked.system, asked.who, actor_, std::move(request),
      [back = asked.back](const result<reply>& outcome) {
        if (outcome)
          back.answer(encode_reply(*outcome));
        else
          back.refuse(outcome.error());
      });
    return {};
  }

  // 0 stays 0, which names no time.
  static std::uint32_t time_left_ms(std::uint32_t timeout_ms, std::uint64_t age_ms) {
    return age_ms < timeout_ms ? timeout_ms - static_cast<std::uint32_t>(age_ms)
                               : std::min(timeout_ms, 1u);
  }

  actor_of<Service> actor_;
};

/// Turns messages into frames. Turns replies, errors and the loss of the connection into messages.
template <class Service>
class proxy_of : public handed_over<
                   typename actor_of<Service>::template extend<caf::reacts_to<own_work>>::base> {
  using base =
    handed_over<typename actor_of<Service>::template extend<caf::reacts_to<own_work>>::base>;

public:
  proxy_of(
    caf::actor_config& config, std::shared_ptr<remote_node> node, std::string target,
    std::uint32_t timeout_ms)
    : base(config), node_(std::move(node)), target_(std::move(target)), timeout_ms_(timeout_ms) {}

  const char* name() const override { return "remote"; }

  typename base::behavior_type make_behavior() override {
    this->set_default_handler(caf::drop);
    return Service::template apply<handlers>::of(*this);
  }

  void on_exit() override {
    answers_.give_up_all({errc::unavailable, "the connection to {} is closing", node_->address()});
  }

private:
  template <class... Methods>
  struct handlers {
    static typename base::behavior_type of(proxy_of& self) {
      return {
        [&self](const typename Methods::request& r) -> caf::result<typename Methods::reply> {
          return self.guarded(typeid(r), [&] { return self.ask(r); });
        }...,
        [&self](own_work& s) {
          if (!self.guarded(typeid(s), [&] { s.run(); }))
            self.answers_.give_up_all(
              {errc::unavailable, "an answer of {} was lost, ask again", self.node_->address()});
        }};
    }
  };

  // The requests through a proxy do not depend on one another, so one that cannot be passed on ends
  // alone. Work that failed does not say whose answer it had, so all that wait are given up then.
  template <class F>
  auto guarded(const std::type_info& message, F f) {
    return survive_handler(*this, message, f, [&] { return "asking " + node_->address(); });
  }

  template <class Request>
  std::uint32_t timeout_of(const Request& request) const {
    if constexpr (requires { request.timeout_ms; })
      if (request.timeout_ms > 0)
        return request.timeout_ms;
    return timeout_ms_;
  }

  template <class Request, class Reply = typename Service::template reply_of<Request>>
  caf::result<Reply> ask(const Request& request) {
    auto rp = this->template make_response_promise<Reply>();
    auto self = caf::actor_cast<caf::actor_addr>(caf::actor_cast<caf::strong_actor_ptr>(this));
    auto timeout_ms = timeout_of(request);
    node_->ask(
      encode_request<Service>(target_, request, timeout_ms), timeout_ms,
      [self, answer = answers_.keep(rp), &system = this->system()](raw_reply raw) {
        auto outcome = raw ? decode_reply<Reply>(*raw) : result<Reply>{fail(raw.error())};
        auto alive = caf::actor_cast<caf::strong_actor_ptr>(self);
        if (!alive)
          return;
        run_in(system, alive, [answer, outcome = std::move(outcome)]() mutable {
          answer(std::move(outcome));
        });
      });
    return rp;
  }

  std::shared_ptr<remote_node> node_;
  const std::string target_;
  const std::uint32_t timeout_ms_;
  open_answers answers_;
};

template <class Service>
std::shared_ptr<const request_reader> wire_ends<Service>::serve(actor_of<Service> actor) {
  return std::make_shared<request_reader_of<Service>>(std::move(actor));
}

template <class Service>
actor_of<Service> wire_ends<Service>::connect(
  caf::actor_system& system, std::shared_ptr<remote_node> node, std::string target,
  std::uint32_t timeout_ms) {
  return system.spawn<proxy_of<Service>>(std::move(node), std::move(target), timeout_ms);
}

} // namespace millrace::actors
