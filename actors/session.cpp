// Decodes on the I/O loop, asks in an actor, answers from wherever the reply comes.
#include <millrace/actors/delivery.hpp>
#include <millrace/actors/envelope.hpp>
#include <millrace/actors/session.hpp>
#include <millrace/core/log.hpp>
#include <millrace/core/race_plant.hpp>

#include <caf/send.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <fmt/format.h>

namespace millrace::actors {

namespace {

using transport::channel;
using transport::frame;
using transport::frame_kind;

using asker_actor = caf::typed_actor<caf::reacts_to<step>>;

std::atomic<std::uint64_t> last_number = 0; // of the sessions of this process

// Owns the requests under way of one peer.
class request_asker : public handed_over<asker_actor::base> {
public:
  using handed_over::handed_over;

  const char* name() const override { return "session"; }

  behavior_type make_behavior() override {
    set_default_handler(caf::drop);
    return {[](step& s) { s.run(); }};
  }

  template <class Handle, class Request>
  void ask(
    const Handle& target, Request request, std::function<void(result<reply_of<Request>>)> done) {
    MILLRACE_PLANTED_RACE("session");
    // The targets answer every request within its deadline.
    this->request(target, caf::infinite, std::move(request))
      .then(
        [done](reply_of<Request>& reply) { done(std::move(reply)); },
        [done](caf::error& e) { done(fail(to_status(e))); });
  }
};

class session : public transport::channel_handler {
public:
  session(
    caf::actor_system& system, std::shared_ptr<transport::fabric> fabric,
    std::shared_ptr<const session_targets> targets, std::shared_ptr<connection_table> connections)
    : system_(system), fabric_(std::move(fabric)), targets_(std::move(targets)),
      connections_(std::move(connections)) {
    auto actor = system_.spawn<request_asker>();
    asker_ = caf::actor_cast<request_asker*>(actor);
    handle_ = caf::actor_cast<caf::strong_actor_ptr>(actor);
  }

  ~session() override { release(); }

  void on_open(const std::shared_ptr<channel>& c) override {
    log().debug(
      "peer connected name={} pid={} uid={}", c->peer().name, c->peer().pid, c->peer().uid);
    connections_->add(c);
    fabric_->peer_opened(c);
  }

  void on_frame(channel& c, frame f) override {
    if (f.kind == frame_kind::driver)
      return fabric_->on_frame(c, std::move(f));
    if (f.kind == frame_kind::request)
      on_request(c, f);
  }

  void on_close(channel& c, const status& why) override {
    log().debug(
      "peer gone name={} pid={} why=\"{}\"", c.peer().name, c.peer().pid, why.to_string());
    connections_->remove(c);
    fabric_->peer_closed(c, why);
    end(peer_gone{asker_of(c), why});
  }

private:
  void on_request(channel& c, const frame& f) {
    wire_reader reader{f.body};
    request_head head;
    if (!reader(head))
      return c.close({errc::protocol_error, std::string{"a request's head: "} + reader.fault()});
    auto bad = dispatch(c, f.correlation, head, reader);
    if (!bad.ok())
      c.close(bad);
  }

  status dispatch(channel& c, std::uint64_t number, const request_head& head, wire_reader& reader) {
    if (connections_->refusing()) {
      reply<done_reply>(c, number, fail(errc::unavailable, "the node is shutting down"));
      return {};
    }
    if (head.kind >= message_kind::enroll)
      return dispatch_checkpoints(c, number, head, reader);
    switch (head.kind) {
    case message_kind::store:
      return to_provider<store_request>(c, number, head, reader);
    case message_kind::load:
      return to_provider<load_request>(c, number, head, reader);
    case message_kind::describe:
      return to_provider<describe_request>(c, number, head, reader);
    case message_kind::list:
      return to_provider<list_request>(c, number, head, reader);
    case message_kind::erase:
      return to_provider<erase_request>(c, number, head, reader);
    case message_kind::pin:
      return to_provider<pin_request>(c, number, head, reader);
    case message_kind::resolve:
      return to_provider<resolve_request>(c, number, head, reader);
    case message_kind::provider_status:
      return to_provider<provider_status_request>(c, number, head, reader);
    case message_kind::directory:
      return pass_on<directory_request>(c, number, targets_->node, reader);
    case message_kind::node_status:
      return pass_on<node_status_request>(c, number, targets_->node, reader);
    default:
      return unknown_kind(c, number, head);
    }
  }

  status dispatch_checkpoints(
    channel& c, std::uint64_t number, const request_head& head, wire_reader& reader) {
    switch (head.kind) {
    case message_kind::enroll:
      return to_checkpoints<enroll_request>(c, number, head, reader);
    case message_kind::leave:
      return to_checkpoints<leave_request>(c, number, head, reader);
    case message_kind::save:
      return to_checkpoints<save_request>(c, number, head, reader);
    case message_kind::durable:
      return to_checkpoints<durable_request>(c, number, head, reader);
    case message_kind::restore:
      return to_checkpoints<restore_request>(c, number, head, reader);
    case message_kind::list_checkpoints:
      return to_checkpoints<list_checkpoints_request>(c, number, head, reader);
    case message_kind::describe_shard:
      return to_checkpoints<describe_shard_request>(c, number, head, reader);
    case message_kind::verify:
      return to_checkpoints<verify_request>(c, number, head, reader);
    case message_kind::erase_checkpoint:
      return to_checkpoints<erase_checkpoint_request>(c, number, head, reader);
    case message_kind::repack:
      return to_checkpoints<repack_request>(c, number, head, reader);
    default:
      return unknown_kind(c, number, head);
    }
  }

  static status unknown_kind(channel& c, std::uint64_t number, const request_head& head) {
    reply<done_reply>(
      c, number,
      fail(
        errc::unsupported,
        "this version knows no request of kind " +
          std::to_string(static_cast<unsigned>(head.kind))));
    return {};
  }

  template <class Request>
  status to_provider(
    channel& c, std::uint64_t number, const request_head& head, wire_reader& reader) {
    return to_one_of<Request>(targets_->providers, "", c, number, head, reader);
  }

  template <class Request>
  status to_checkpoints(
    channel& c, std::uint64_t number, const request_head& head, wire_reader& reader) {
    return to_one_of<Request>(
      targets_->checkpoints, " that keeps checkpoints", c, number, head, reader);
  }

  template <class Request, class Targets>
  status to_one_of(
    const Targets& targets, std::string_view what, channel& c, std::uint64_t number,
    const request_head& head, wire_reader& reader) {
    auto found = targets.find(head.target);
    if (found == targets.end()) {
      reply<done_reply>(
        c, number,
        fail(errc::not_found, fmt::format("this node has no provider {}{}", head.target, what)));
      return {};
    }
    return pass_on<Request>(c, number, found->second, reader);
  }

  template <class Request, class Handle>
  status pass_on(channel& c, std::uint64_t number, const Handle& target, wire_reader& reader) {
    Request request;
    if (!reader(request))
      return {errc::protocol_error, std::string{"a request: "} + reader.fault()};
    if (auto bad = check_owner(c, request); !bad.ok()) {
      reply<reply_of<Request>>(c, number, fail(bad));
      return {};
    }
    if constexpr (requires { request.from; })
      request.from = asker_of(c);
    run_in(
      system_, handle_,
      [actor = asker_, target, request = std::move(request), number,
       weak = c.weak_from_this()]() mutable {
        actor->ask<Handle, Request>(
          target, std::move(request), [weak, number](result<reply_of<Request>> r) {
            if (auto alive = weak.lock())
              reply(*alive, number, std::move(r));
          });
      });
    return {};
  }

  // One process may have several connections; each takes along what came through it.
  asker asker_of(const channel& c) const { return {c.peer().id, number_}; }

  // Whose memory a handle names comes from the connection, never from the message.
  template <class Request>
  static status check_owner(const channel& c, const Request& request) {
    const bulk_handle* handle = nullptr;
    if constexpr (requires { request.source; })
      handle = &request.source;
    if constexpr (requires { request.target; })
      handle = &request.target;
    if (!handle || handle->segments.empty() || handle->owner == c.peer().id)
      return {};
    return {
      errc::permission_denied, "the handle names memory of another process than " + c.peer().name};
  }

  template <class Reply>
  static void reply(channel& c, std::uint64_t number, result<Reply> r) {
    auto sent = c.send(frame_kind::reply, number, encode_reply(r));
    // Too large or too many to queue: the peer must still hear something.
    if (!sent.ok() && sent.code() != errc::peer_lost)
      sent = c.send(
        frame_kind::reply, number, encode_reply<Reply>(fail(sent.within("sending the answer"))));
    if (!sent.ok() && c.is_open())
      c.close(sent);
  }

  // After what the peer has asked before, and in its place: a registration on its way must not outlive the news.
  void end(peer_gone news) {
    if (auto handle = std::exchange(handle_, nullptr))
      run_in(system_, handle, [actor = asker_, targets = targets_, news = std::move(news)] {
        for (auto& [name, manager] : targets->checkpoints)
          actor->send(manager, news);
        actor->quit();
      });
  }

  void release() {
    if (auto actor = std::exchange(handle_, nullptr))
      caf::anon_send_exit(actor, caf::exit_reason::kill);
  }

  caf::actor_system& system_;
  std::shared_ptr<transport::fabric> fabric_;
  std::shared_ptr<const session_targets> targets_;
  std::shared_ptr<connection_table> connections_;
  caf::strong_actor_ptr handle_;
  request_asker* asker_ = nullptr;
  const std::uint64_t number_ = last_number.fetch_add(1) + 1;
};

} // namespace

void connection_table::add(const std::shared_ptr<channel>& c) {
  std::lock_guard guard{mutex_};
  open_.emplace(c.get(), c);
}

void connection_table::remove(const channel& c) {
  std::lock_guard guard{mutex_};
  open_.erase(&c);
}

std::size_t connection_table::size() const {
  std::lock_guard guard{mutex_};
  return open_.size();
}

void connection_table::close_all(const status& why, std::uint32_t drain_ms) {
  std::vector<std::shared_ptr<channel>> all;
  {
    std::lock_guard guard{mutex_};
    for (auto& [key, weak] : open_)
      if (auto c = weak.lock())
        all.push_back(std::move(c));
  }
  for (auto& c : all)
    c->close(why, drain_ms);
}

std::shared_ptr<transport::channel_handler> make_session(
  caf::actor_system& system, std::shared_ptr<transport::fabric> fabric,
  std::shared_ptr<const session_targets> targets, std::shared_ptr<connection_table> connections) {
  return std::make_shared<session>(
    system, std::move(fabric), std::move(targets), std::move(connections));
}

} // namespace millrace::actors
