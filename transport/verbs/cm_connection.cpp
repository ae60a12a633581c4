// Takes the steps of librdmacm, one for each event.
#include <millrace/core/log.hpp>
#include <millrace/net/channel/refusal_log.hpp>
#include <millrace/transport/bytes.hpp>
#include <millrace/transport/verbs/cm_connection.hpp>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace millrace::transport::verbs {

namespace {

// The bound of requests that wait to be handled. The kernel keeps up to as many more.
constexpr std::uint32_t requests_max = 8;

status failed(const char* doing) { return status_from_errno(errno, doing); }

} // namespace

std::array<std::byte, cm_words::size_bytes> cm_words::encode() const {
  std::array<std::byte, size_bytes> out{};
  byte_writer to{out.data()};
  to.raw(token.bytes.data(), token.bytes.size());
  to.number(pair);
  to.number(generation);
  return out;
}

std::optional<cm_words> cm_words::decode(std::span<const std::byte> bytes) {
  if (bytes.size() < size_bytes)
    return std::nullopt;
  cm_words out;
  byte_reader from{bytes.data()};
  from.raw(out.token.bytes.data(), out.token.bytes.size());
  out.pair = from.number<std::uint32_t>();
  out.generation = from.number<std::uint32_t>();
  return out;
}

result<std::shared_ptr<cm_connection>> cm_connection::open(parts p, bool passive) {
  p.hub->sweep();
  std::shared_ptr<cm_connection> c{new cm_connection{std::move(p)}};
  auto id = c->p_.hub->bind(*c->p_.port, c);
  if (!id)
    return fail(id.error());
  c->id_ = std::move(*id);
  c->passive_ = passive;
  if (passive && rdma_listen(c->id_->get(), requests_max) != 0)
    return fail(failed("listening by rdma_cm"));
  c->address_ = c->id_->local_address().to_string();
  return c;
}

void cm_connection::announce(connect& ours) const {
  if (!passive_)
    return;
  ours.cm_address = address_;
  ours.token = token_;
}

void cm_connection::join(
  std::shared_ptr<queue_pair> q, const connect& theirs, std::function<void(const status&)> done) {
  q_ = std::move(q);
  theirs_ = theirs;
  done_ = std::move(done);
  if (passive_)
    return accept();
  if (auto bad = ask_for_address(); !bad.ok())
    finish(bad);
}

void cm_connection::on_event(cm_event e) {
  if (e.request && ++requests_ > requests_max) {
    --requests_;
    return;
  }
  if (auto setup = p_.setup.lock())
    setup->post(p_.lane, p_.turn, [self = shared_from_this(), e = std::move(e)]() mutable {
      self->handle(e);
    });
}

void cm_connection::handle(cm_event& e) {
  if (e.request) {
    --requests_;
    return consider(e);
  }
  if (!done_)
    return; // the channel reports what follows a connection
  status bad;
  switch (e.type) {
  case RDMA_CM_EVENT_ADDR_RESOLVED:
    bad = ask_for_route();
    break;
  case RDMA_CM_EVENT_ROUTE_RESOLVED:
    bad = ask();
    break;
  case RDMA_CM_EVENT_CONNECT_RESPONSE:
    return finish(complete());
  default:
    bad = {errc::unavailable, "{}, status {}", rdma_event_str(e.type), e.status};
  }
  if (!bad.ok())
    finish(bad);
}

void cm_connection::finish(const status& outcome) {
  auto done = std::exchange(done_, nullptr);
  q_ = nullptr;
  if (outcome.ok())
    return done({});
  done(
    {errc::unavailable, "rdma_cm with {}: {}", passive_ ? p_.peer : theirs_.cm_address,
     outcome.detail()});
}

rdma_conn_param cm_connection::parameters() const {
  rdma_conn_param out{};
  out.qp_num = q_->number();
  out.responder_resources = out.initiator_depth =
    static_cast<std::uint8_t>(q_->reads_with(theirs_));
  out.retry_count = static_cast<std::uint8_t>(p_.options.ack_retries);
  out.rnr_retry_count = 7;
  return out;
}

status cm_connection::ask_for_address() {
  auto to = net::socket_address::parse(theirs_.cm_address);
  if (!to)
    return to.error();
  auto timeout = static_cast<int>(p_.options.connect_timeout_ms);
  if (rdma_resolve_addr(id_->get(), nullptr, const_cast<sockaddr*>(to->get()), timeout) != 0)
    return failed("finding the address");
  return {};
}

status cm_connection::ask_for_route() {
  if (!id_->is_at(*p_.port))
    return {errc::unavailable, "the route does not start at " + p_.port->name()};
  if (rdma_resolve_route(id_->get(), static_cast<int>(p_.options.connect_timeout_ms)) != 0)
    return failed("finding the route");
  return {};
}

status cm_connection::ask() {
  auto words = cm_words{theirs_.token, theirs_.pair, theirs_.generation}.encode();
  auto how = parameters();
  how.private_data = words.data();
  how.private_data_len = static_cast<std::uint8_t>(words.size());
  return rdma_connect(id_->get(), &how) == 0 ? status{} : failed("asking for the connection");
}

status cm_connection::complete() {
  if (auto bad = q_->join(*id_->get(), theirs_, p_.options); !bad.ok())
    return bad;
  return rdma_establish(id_->get()) == 0 ? status{} : failed("establishing the connection");
}

void cm_connection::consider(cm_event& e) {
  auto words = cm_words::decode(e.words);
  auto known =
    words && equal_constant_time(region_key{words->token.bytes}, region_key{token_.bytes});
  if (!known)
    return refuse(
      e, {errc::permission_denied, "rdma_cm: a request without the token of the channel"});
  if (request_ || accepted_)
    return refuse(e, {errc::permission_denied, "rdma_cm: a second request with one token"});
  request_ = std::move(e);
  if (done_)
    accept();
}

// The request and the channel's announcement may come in either order.
void cm_connection::accept() {
  if (!request_)
    return;
  auto e = *std::exchange(request_, std::nullopt);
  auto words = cm_words::decode(e.words);
  if (
    words->pair != theirs_.pair || words->generation != theirs_.generation ||
    e.number != theirs_.number)
    return refuse(
      e, {errc::permission_denied, "rdma_cm: a request for another queue pair than announced"});
  accepted_ = true;
  auto outcome = q_->join(*e.request->get(), theirs_, p_.options);
  auto how = parameters();
  if (outcome.ok() && rdma_accept(e.request->get(), &how) != 0)
    outcome = failed("accepting the connection");
  if (outcome.ok())
    id_ = std::move(e.request); // the listener is closed
  finish(outcome);
}

void cm_connection::refuse(const cm_event& e, const status& why) {
  net::refused(e.request->source(), why);
  rdma_reject(e.request->get(), nullptr, 0);
}

} // namespace millrace::transport::verbs
