// A session, and a client that asks it through memory, under the deterministic scheduler. Used by
// tests of services.
#pragma once

#include <millrace/actors/provider_actor.hpp>
#include <millrace/actors/wire/ask_remote.hpp>
#include <millrace/actors/wire/envelope.hpp>
#include <millrace/actors/wire/remote_node.hpp>
#include <millrace/actors/wire/session.hpp>
#include <millrace/tests/support/actor_fixture.hpp>
#include <millrace/tests/support/fake_channel.hpp>
#include <millrace/tests/support/fake_fabric.hpp>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace millrace::testing {

/// The service's end of a connection. It keeps what it is told to send.
class answering_channel : public fake_channel {
public:
  using fake_channel::fake_channel;

  status send(
    net::frame_kind, std::uint64_t correlation, std::span<const std::byte> body,
    std::span<const int>) override {
    if (body.size() > frame_bytes_max)
      return {errc::invalid_argument, "a frame of that size"};
    replies[correlation].assign(body.begin(), body.end());
    return {};
  }
  void close(status why, std::uint32_t) override { closed = why; }

  std::map<std::uint64_t, byte_buffer> replies;
  std::size_t frame_bytes_max = 4096;
  status closed;
};

/// A node with a session for each channel. A test adds the actors with `serve`.
struct wire_fixture : actor_fixture {
  std::shared_ptr<fake_fabric> fabric = std::make_shared<fake_fabric>();
  std::shared_ptr<actors::service_table> services = std::make_shared<actors::service_table>();
  std::shared_ptr<actors::connection_table> connections =
    std::make_shared<actors::connection_table>(16, 1 << 20);
  std::shared_ptr<answering_channel> channel =
    std::make_shared<answering_channel>(random_id<peer_id>(), "trainer");
  std::map<answering_channel*, std::shared_ptr<net::channel_handler>> sessions;
  std::vector<caf::actor> served;
  std::uint64_t correlation = 0;

  wire_fixture() { sched.run(); }

  ~wire_fixture() {
    sessions.clear();
    for (auto& actor : served)
      caf::anon_send_exit(actor, caf::exit_reason::kill);
    sched.run();
  }

  template <class Service, class Handle>
  Handle serve(const std::string& target, Handle actor) {
    services->add<Service>(target, actor);
    served.push_back(caf::actor_cast<caf::actor>(actor));
    sched.run();
    return actor;
  }

  net::channel_handler& session_of(answering_channel& c) {
    auto& session = sessions[&c];
    if (!session)
      session = actors::make_session(system, fabric, services, connections);
    return *session;
  }

  /// Brings a request frame and does not wait. Returns its number.
  std::uint64_t bring(answering_channel& from, const byte_buffer& body) {
    session_of(from).on_frame(from, {net::frame_kind::request, ++correlation, body, {}});
    return correlation;
  }

  /// Returns the body of the reply to a request frame.
  result<std::span<const std::byte>> answer_to(const byte_buffer& body) {
    bring(*channel, body);
    sched.run();
    auto reply = channel->replies.find(correlation);
    if (reply == channel->replies.end())
      return fail(channel->closed.ok() ? status{errc::internal, "no reply"} : channel->closed);
    return reply->second;
  }

  template <
    class Service, class Request, class Reply = typename Service::template reply_of<Request>>
  result<Reply> ask_through_frames(const std::string& target, const Request& request) {
    auto reply = answer_to(actors::encode_request<Service>(target, request));
    return reply ? actors::decode_reply<Reply>(*reply) : fail(reply.error());
  }

  /// Returns the error of a request with this number.
  errc refused(std::uint16_t number, const std::string& target) {
    auto reply = answer_to(encode(actors::request_head{target, number}));
    return actors::decode_reply<actors::done_reply>(reply.value()).error().code();
  }
};

/// The way from a client to the session.
class node_in_memory : public actors::remote_node {
public:
  explicit node_in_memory(wire_fixture& world) : world_(world) {}

  const std::string& address() const noexcept override { return address_; }
  bool is_connected() const override { return lost.ok(); }
  void ask(
    std::span<const std::byte> body, std::uint32_t,
    std::function<void(actors::raw_reply)> done) override {
    done(lost.ok() ? world_.answer_to({body.begin(), body.end()}) : fail(lost));
  }
  void close(const status&) override {}

  /// Asks the actor called "here".
  template <
    class Service, class Request, class Reply = typename Service::template reply_of<Request>>
  result<Reply> ask_for(const Request& request) {
    result<Reply> reply = fail(errc::internal, "no answer");
    actors::ask_remote<Service>(
      *this, "here", request, 1000, [&](result<Reply> r) { reply = std::move(r); });
    return reply;
  }

  status lost;

private:
  wire_fixture& world_;
  std::string address_ = "memory";
};

} // namespace millrace::testing
