// Decodes and asks on the I/O loop, and answers on the thread that has the reply.
#include <millrace/actors/supervision.hpp>
#include <millrace/actors/wire/envelope.hpp>
#include <millrace/actors/wire/reply_port.hpp>
#include <millrace/actors/wire/session.hpp>
#include <millrace/core/log.hpp>
#include <millrace/core/race_plant.hpp>

#include <optional>

namespace millrace::actors {

namespace {

using net::channel;
using net::frame;
using net::frame_kind;

class session : public net::channel_handler {
public:
  session(
    caf::actor_system& system, std::shared_ptr<transport::fabric> fabric,
    std::shared_ptr<const service_table> services, std::shared_ptr<connection_table> connections)
    : fabric_(std::move(fabric)), services_(std::move(services)),
      connections_(std::move(connections)), port_(reply_port::make(system)) {}

  ~session() override { port().end({errc::unavailable, "the connection is gone"}); }

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
    // Actors that keep something for the connection watch the port. They hear of its end after the
    // requests that the peer sent before.
    port().end(loss_of(why));
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
    peer_request request{port(), from_peer(c), {c.weak_from_this(), number, nullptr}};
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
    auto place = connections_->place_for(*holder_, size_bytes);
    if (!found || !place) {
      request.back.refuse(found ? place.error() : found.error());
      return {};
    }
    request.back.place = std::move(*place);
    return (*found)->ask(head.number, reader, std::move(request));
  }

  reply_port& port() const noexcept { return *caf::actor_cast<reply_port*>(port_); }

  // A process may have several connections. Registrations end with the connection through which
  // they came. No places of a provider are kept for anyone.
  asker from_peer(const channel& c) {
    if (!holder_)
      holder_ = net::party_of(c.peer());
    return {c.peer().id, c.number(), {holder_->owner, holder_->process}};
  }

  std::shared_ptr<transport::fabric> fabric_;
  std::shared_ptr<const service_table> services_;
  std::shared_ptr<connection_table> connections_;
  peer_clock clock_;
  std::optional<party> holder_;      // the peer
  const caf::strong_actor_ptr port_; // asks on the peer's behalf
};

} // namespace

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

void connection_table::add(const std::shared_ptr<channel>& c) {
  std::lock_guard guard{mutex_};
  open_[c->number()] = c;
}

void connection_table::remove(const channel& c) {
  std::lock_guard guard{mutex_};
  open_.erase(c.number());
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
