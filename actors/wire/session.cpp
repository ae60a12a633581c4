// Decodes on the I/O loop, asks in an actor, and answers on the thread that has the reply.
#include <millrace/actors/caller.hpp>
#include <millrace/actors/wire/envelope.hpp>
#include <millrace/actors/wire/session.hpp>
#include <millrace/core/log.hpp>
#include <millrace/core/race_plant.hpp>

#include <caf/send.hpp>
#include <caf/typed_event_based_actor.hpp>

namespace millrace::actors {

namespace {

using net::channel;
using net::frame;
using net::frame_kind;

std::atomic<std::uint64_t> last_number = 0; // the number of the last session in this process

class session : public net::channel_handler {
public:
  session(
    caf::actor_system& system, std::shared_ptr<transport::fabric> fabric,
    std::shared_ptr<const service_table> services, std::shared_ptr<connection_table> connections)
    : system_(system), fabric_(std::move(fabric)), services_(std::move(services)),
      connections_(std::move(connections)) {
    caller_ = caf::actor_cast<caf::strong_actor_ptr>(system_.spawn<caller>());
  }

  ~session() override { release(); }

  void on_open(const std::shared_ptr<channel>& c) override {
    log().debug(
      "peer connected name={} pid={} uid={}", c->peer().name, c->peer().pid, c->peer().uid);
    connections_->add(number_, c);
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
    connections_->remove(number_);
    fabric_->peer_closed(c, why);
    end(why);
  }

private:
  void on_request(channel& c, const frame& f) {
    wire_reader reader{f.body};
    request_head head;
    if (!reader(head))
      return c.close({errc::protocol_error, "a request's head: {}", reader.fault()});
    auto bad = dispatch(c, f.correlation, f.body.size(), head, reader);
    if (!bad.ok())
      c.close(bad);
  }

  status dispatch(
    channel& c, std::uint64_t number, std::uint64_t size_bytes, const request_head& head,
    wire_reader& reader) {
    MILLRACE_PLANTED_RACE("session");
    // A process may have several connections. Registrations end with the connection through which
    // they came. No places of a provider are kept for anyone.
    auto holder = net::party_of(c.peer());
    asker from{c.peer().id, number_, {holder.owner, holder.process}};
    peer_request request{system_, caller_, std::move(from), {c.weak_from_this(), number, nullptr}};
    if (connections_->refusing()) {
      request.back.refuse({errc::unavailable, "the node is shutting down"});
      return {};
    }
    // An older build does not say when it asked.
    if (head.timeout_ms > 0)
      request.age_ms = clock_.age_ms(head.sent_ms, steady_clock::now());
    if (request.age_ms > head.timeout_ms) {
      request.back.refuse(
        {errc::deadline_exceeded, "the request is {} ms old, and its asker waited for {} ms",
         request.age_ms, head.timeout_ms});
      return {};
    }
    auto found = services_->reader_of(head.number, head.target);
    auto place = connections_->place_for(holder, size_bytes);
    if (!found || !place) {
      request.back.refuse(found ? place.error() : found.error());
      return {};
    }
    request.back.place = std::move(*place);
    return (*found)->ask(head.number, reader, request);
  }

  // The caller ends after the requests that the peer sent before. Actors that keep something for
  // the connection watch it.
  void end(const status& why) {
    auto who = std::exchange(caller_, nullptr);
    if (!who)
      return;
    run_in(system_, who, [actor = caf::actor_cast<caller*>(who), gone = loss_of(why)] {
      actor->quit(to_caf_error(gone));
    });
  }

  void release() {
    if (auto who = std::exchange(caller_, nullptr))
      caf::anon_send_exit(who, caf::exit_reason::kill);
  }

  caf::actor_system& system_;
  std::shared_ptr<transport::fabric> fabric_;
  std::shared_ptr<const service_table> services_;
  std::shared_ptr<connection_table> connections_;
  peer_clock clock_;
  caf::strong_actor_ptr caller_; // owns the peer's requests under way
  const std::uint64_t number_ = last_number.fetch_add(1) + 1;
};

} // namespace

void reply_path::answer(const byte_buffer& reply) const {
  auto c = channel.lock();
  if (!c)
    return;
  auto sent = c->send(frame_kind::reply, correlation, reply);
  // The reply is too large, or too many replies are queued. The peer must still get an answer.
  if (!sent.ok() && sent.code() != errc::peer_lost)
    sent =
      c->send(frame_kind::reply, correlation, encode_refusal(sent.within("sending the answer")));
  if (!sent.ok() && c->is_open())
    c->close(sent);
}

void reply_path::refuse(const status& why) const { answer(encode_refusal(why)); }

result<std::shared_ptr<void>> connection_table::place_for(
  const party& who, std::uint64_t size_bytes) {
  auto bad = requests_->take(who);
  if (!bad.ok())
    return fail(bad);
  bad = request_bytes_->take(who, size_bytes);
  if (!bad.ok()) {
    requests_->give_back(who);
    return fail(bad);
  }
  return std::shared_ptr<void>{
    this, [requests = requests_, bytes = request_bytes_, who, size_bytes](void*) {
      bytes->give_back(who, size_bytes);
      requests->give_back(who);
    }};
}

request_load connection_table::requests() const {
  return {requests_->taken(), request_bytes_->taken()};
}

void connection_table::add(std::uint64_t number, const std::shared_ptr<channel>& c) {
  std::lock_guard guard{mutex_};
  open_.emplace(number, c);
}

void connection_table::remove(std::uint64_t number) {
  std::lock_guard guard{mutex_};
  open_.erase(number);
}

std::size_t connection_table::size() const {
  std::lock_guard guard{mutex_};
  return open_.size();
}

void connection_table::close_all(const status& why, std::uint32_t drain_ms) {
  std::vector<std::shared_ptr<channel>> all;
  {
    std::lock_guard guard{mutex_};
    for (auto& [number, weak] : open_)
      if (auto c = weak.lock())
        all.push_back(std::move(c));
  }
  for (auto& c : all)
    c->close(why, drain_ms);
}

std::shared_ptr<net::channel_handler> make_session(
  caf::actor_system& system, std::shared_ptr<transport::fabric> fabric,
  std::shared_ptr<const service_table> services, std::shared_ptr<connection_table> connections) {
  return std::make_shared<session>(
    system, std::move(fabric), std::move(services), std::move(connections));
}

} // namespace millrace::actors
