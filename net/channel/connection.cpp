// The part of a connection that runs on the loop: reading, handshake, heartbeats, closing.
#include <millrace/core/assert.hpp>
#include <millrace/core/identity.hpp>
#include <millrace/core/log.hpp>
#include <millrace/net/channel/connection.hpp>
#include <millrace/net/tls/context.hpp>

#include <fmt/core.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>

namespace millrace::net {

namespace {

// Bytes read from one connection before the others get their turn.
constexpr std::size_t read_turn_bytes = 1u << 20;

// So long a peer may have left without being noticed while its requests are taken. Looking is a
// system call.
constexpr auto end_noticed_after = std::chrono::milliseconds{5};

} // namespace

/// The loop's reference to a connection. If the loop stops first, the handler is still told of the
/// end.
struct connection::loop_tie {
  explicit loop_tie(std::shared_ptr<connection> c) : of(std::move(c)) {}
  loop_tie(const loop_tie&) = delete;
  ~loop_tie() { of->finish(status{errc::unavailable, "the I/O loop has stopped"}); }

  std::shared_ptr<connection> of;
};

connection::connection(
  std::shared_ptr<io_loop> loop, connection_seed seed, const channel_options& options,
  connection_hooks hooks)
  : loop_(std::move(loop)), side_(seed.side), options_(options), began_(seed.began),
    hooks_(std::move(hooks)),
    parser_(
      handshake_bytes_max, std::min<std::uint32_t>(options.fds_per_frame_max, fds_at_once_max)),
    stream_(std::move(seed.stream)), queue_(*stream_, options.send_queue_bytes_max) {
  peer_.pid = seed.who.pid;
  peer_.uid = seed.who.uid;
  peer_.address = seed.address;
  peer_.connected_by_us = is_connector();
}

void connection::start() {
  auto tie = std::make_shared<loop_tie>(self());
  auto watched = loop_->watch(
    stream_->fd(), reading_events, [tie](std::uint32_t events) { tie->of->on_events(events); });
  if (!watched.ok())
    return finish(watched);
  auto left = std::chrono::ceil<std::chrono::milliseconds>(
    began_ + std::chrono::milliseconds{options_.handshake_timeout_ms} - steady_clock::now());
  auto left_ms = static_cast<std::uint32_t>(std::max<std::int64_t>(left.count(), 0));
  timer_ = loop_->run_after(left_ms, [weak = weak_from_this()] {
    if (auto c = std::static_pointer_cast<connection>(weak.lock()))
      c->fault(status{
        errc::deadline_exceeded, "{} did not finish the handshake within {} ms", c->describe_peer(),
        c->options_.handshake_timeout_ms});
  });
  our_hello_ = own_hello();
  send_own(frame_kind::hello, our_hello_);
  settle_stream();
}

byte_buffer connection::own_hello() const {
  hello h;
  h.id = this_peer();
  h.name = options_.local_name.empty() ? fmt::format("{}{}", client_prefix, this_process())
                                       : options_.local_name;
  h.requests_max = options_.requests_max;
  h.frame_bytes_max = std::max(options_.frame_bytes_max, handshake_bytes_max);
  h.fds_per_frame_max = std::min<std::uint32_t>(options_.fds_per_frame_max, fds_at_once_max);
  random_bytes(h.nonce.data(), h.nonce.size());
  if (options_.tls)
    h.cluster = options_.tls->mark();
  return encode(h);
}

void connection::on_events(std::uint32_t events) {
  auto keep = shared_from_this();
  if (events & (EPOLLHUP | EPOLLRDHUP))
    peer_has_left_ = true;
  if (auto* ring = reading_ring(); ring && events != 0)
    ring->drain_socket();
  // An event of the socket may say that a ring has room.
  if (events & EPOLLOUT || (events != 0 && !writes_to_socket()))
    flush();
  if (events != EPOLLOUT)
    read_some();
}

void connection::read_some() {
  read_turn();
  if (phase_ != phase::closed && std::exchange(event_read_, false))
    flush();
  if (phase_ != phase::closed)
    settle_stream();
}

void connection::read_turn() {
  for (std::size_t taken = 0; phase_ != phase::closed && taken < read_turn_bytes;) {
    auto room = parser_.room();
    auto got = stream_->receive(room, received_fds_);
    if (got.error_number == EAGAIN)
      return;
    if (got.error_number != 0)
      return lost(stream_->explain(got.error_number));
    if (got.fds_lost)
      return fault(status{errc::protocol_error, "more descriptors than a frame may carry"});
    if (got.size_bytes == 0)
      return lost(status{errc::peer_lost, "it closed the connection without a closing message"});
    heard_ = true;
    taken += got.size_bytes;
    parser_.commit(got.size_bytes);
    // A short read has emptied the socket; another read would return EAGAIN.
    if (!deliver() || (got.size_bytes < room.size() && !stream_->has_unread()))
      return;
  }
}

// A stream may hold bytes of either direction, which polling the socket does not show.
void connection::settle_stream() {
  if (stream_->has_unsent()) {
    std::lock_guard guard{send_mutex_};
    arm_writing();
  }
  if (auto* ring = reading_ring())
    return loop_->poll(stream_->fd(), ring->arrivals());
  if (!stream_->has_unread() || std::exchange(read_posted_, true))
    return;
  loop_->post([c = self()] {
    c->read_posted_ = false;
    c->read_some();
  });
}

// Delivers the complete frames received so far. False when that ended the connection.
bool connection::deliver() {
  auto delivered = false;
  while (true) {
    auto next = parser_.next();
    if (!next) {
      fault(next.error());
      return false;
    }
    if (!*next)
      break;
    auto taken = take(**next);
    if (!taken.ok())
      fault(taken);
    if (phase_ == phase::closed)
      return false;
    delivered = true;
  }
  if (delivered) {
    parser_.free_returned();
    partial_ = nullptr;
  }
  if (auto bad = count_partial(); !bad.ok()) {
    fault(bad);
    return false;
  }
  if (received_fds_.size() <= parser_.fds_of_partial())
    return true;
  fault(status{errc::protocol_error, "descriptors that no frame announced"});
  return false;
}

// Counts a large frame once its header has arrived. The peer may never send the rest.
status connection::count_partial() {
  if (partial_ || parser_.body_bytes_of_partial() <= uncounted_bytes_max)
    return {};
  auto place = share_.lend(frame_header_bytes + parser_.body_bytes_of_partial());
  if (!place)
    return place.error();
  partial_ = std::move(*place);
  return {};
}

// If this process stood still, or was busy, no event tells of the end in time: frames of the peer
// are found first, in a ring or in the rest of a read.
bool connection::has_peer_left() {
  auto now = steady_clock::now();
  if (peer_has_left_ || now - peer_seen_at_ < end_noticed_after)
    return peer_has_left_;
  pollfd socket{stream_->fd(), POLLRDHUP, 0};
  peer_has_left_ = ::poll(&socket, 1, 0) > 0;
  peer_seen_at_ = now;
  return peer_has_left_;
}

status connection::take(const parsed_frame& arrived) {
  if (auto* ring = reading_ring())
    event_read_ |= ring->bring_fds(arrived.header.fds, received_fds_);
  if (arrived.header.fds > received_fds_.size())
    return status{errc::protocol_error, "a frame without the descriptors it announced"};
  frame f{arrived.header.kind, arrived.header.correlation, arrived.body, {}};
  auto end_of_fds = received_fds_.begin() + arrived.header.fds;
  f.fds.assign(std::make_move_iterator(received_fds_.begin()), std::make_move_iterator(end_of_fds));
  received_fds_.erase(received_fds_.begin(), end_of_fds);
  if (f.kind == frame_kind::goodbye) {
    end_by_goodbye(f.body);
    return {};
  }
  if (phase_ == phase::handshake)
    return take_in_handshake(arrived);
  switch (f.kind) {
  case frame_kind::hello:
  case frame_kind::proof:
    return status{errc::protocol_error, "a second handshake"};
  case frame_kind::ping:
    send_if_idle(frame_kind::pong);
    return {};
  case frame_kind::pong:
    return {};
  case frame_kind::ring:
    return take_ring(std::move(f.fds));
  case frame_kind::request:
    // Its sender waits for it no more, and may have asked for something else since.
    if (has_peer_left())
      return {};
    [[fallthrough]];
  case frame_kind::reply:
    if (auto counted = take_counted(arrived); !counted.ok())
      return counted;
    break;
  case frame_kind::cancel:
  case frame_kind::driver:
    break;
  default:
    return {}; // a kind of a later version
  }
  handler_->on_frame(*this, std::move(f));
  return {};
}

// Requests and replies move credits.
status connection::take_counted(const parsed_frame& arrived) {
  std::lock_guard guard{send_mutex_};
  if (arrived.header.kind == frame_kind::request) {
    if (serving_ >= options_.requests_max)
      return status{
        errc::protocol_error, "more requests at a time than the {} granted", options_.requests_max};
    ++serving_;
  } else if (outstanding_ > 0) {
    --outstanding_;
    loop_->expect(-1);
    release_waiting();
  }
  return {};
}

status connection::take_in_handshake(const parsed_frame& arrived) {
  if (arrived.header.kind == frame_kind::hello && their_hello_.empty())
    return take_hello(arrived);
  if (arrived.header.kind == frame_kind::proof && !their_hello_.empty())
    return take_proof(arrived);
  return status{errc::protocol_error, "a frame out of the order of the handshake"};
}

status connection::take_hello(const parsed_frame& arrived) {
  auto theirs = decode_hello(arrived.body);
  if (!theirs)
    return theirs.error();
  their_hello_.assign(arrived.body.begin(), arrived.body.end());
  auto ours = decode<hello>(our_hello_, "hello");
  MILLRACE_ASSERT(ours);
  auto version = agree(*ours, *theirs);
  if (!version)
    return version.error();
  peer_.id = theirs->id;
  peer_.name = theirs->name;
  peer_.protocol = *version;
  peer_.cluster = theirs->cluster;
  {
    std::lock_guard guard{send_mutex_};
    peer_frame_bytes_max_ = theirs->frame_bytes_max;
    peer_fds_max_ = std::min<std::uint32_t>(theirs->fds_per_frame_max, fds_at_once_max);
    granted_ = theirs->requests_max;
  }
  if (is_connector())
    send_own(frame_kind::proof, prove(side_, stream_->binding(), our_hello_, their_hello_));
  return {};
}

status connection::take_proof(const parsed_frame& arrived) {
  auto bad = is_connector() ? check_proof(
                                arrived.body, peer_.id, handshake_side::acceptor,
                                stream_->binding(), our_hello_, their_hello_)
                            : check_proof(
                                arrived.body, peer_.id, handshake_side::connector,
                                stream_->binding(), their_hello_, our_hello_);
  if (bad.ok())
    bad = stream_->vouch_for(peer_.name);
  if (!bad.ok())
    return bad;
  auto handler = hooks_.admit(peer_);
  if (!handler)
    return handler.error();
  if (!is_connector())
    send_own(frame_kind::proof, prove(side_, stream_->binding(), their_hello_, our_hello_));
  open(std::move(*handler));
  return {};
}

// The hellos do not change once the channel is open.
channel_key connection::derive_key(std::string_view label) const {
  if (auto exported = stream_->export_key(label))
    return *exported;
  return is_connector() ? derive(label, our_hello_, their_hello_)
                        : derive(label, their_hello_, our_hello_);
}

void connection::open(std::shared_ptr<channel_handler> handler) {
  handler_ = std::move(handler);
  parser_.set_body_bytes_max(options_.frame_bytes_max);
  share_ = {options_.buffers, party_of(peer_)};
  {
    std::lock_guard guard{send_mutex_};
    queue_.count(share_);
  }
  loop_->cancel_timer(timer_);
  schedule_heartbeat();
  phase_ = phase::open;
  offer_ring();
  handler_->on_open(shared_from_this());
  if (auto done = std::exchange(hooks_.done, nullptr))
    done(shared_from_this());
}

void connection::schedule_heartbeat() {
  heartbeat_at_ = steady_clock::now();
  auto delay_ms = std::max(1u, std::min(options_.heartbeat_ms, options_.peer_timeout_ms / 4));
  timer_ = loop_->run_after(delay_ms, [weak = weak_from_this()] {
    if (auto c = std::static_pointer_cast<connection>(weak.lock()))
      c->on_heartbeat();
  });
}

// Silence counts only while this process runs: after a pause (a stopped process, a suspended
// machine) at most one heartbeat interval is added.
void connection::on_heartbeat() {
  if (phase_ == phase::closed)
    return;
  auto passed =
    std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now() - heartbeat_at_);
  silence_ += std::min(passed, std::chrono::milliseconds{2 * std::uint64_t{options_.heartbeat_ms}});
  if (!heard_ && silence_ >= std::chrono::milliseconds{options_.peer_timeout_ms})
    read_some(); // what has come in the meantime counts
  if (phase_ == phase::closed)
    return;
  if (std::exchange(heard_, false))
    silence_ = {};
  if (silence_ >= std::chrono::milliseconds{options_.peer_timeout_ms})
    return fault(
      status{errc::peer_lost, "{} has been silent for {} ms", describe_peer(), silence_.count()});
  if (silence_ > std::chrono::milliseconds{0})
    send_if_idle(frame_kind::ping);
  schedule_heartbeat();
}

void connection::end_by_goodbye(std::span<const std::byte> body) {
  auto reason = decode_goodbye(body);
  if (phase_ == phase::handshake)
    return finish(reason.within(describe_peer() + " refused the connection"));
  finish(
    status{errc::peer_lost, "{} closed the connection: {}", describe_peer(), reason.to_string()});
}

void connection::lost(const status& how) {
  if (phase_ == phase::handshake && how.code() != errc::peer_lost)
    return finish(how.within(describe_peer()));
  finish(status{errc::peer_lost, "{} is gone: {}", describe_peer(), how.detail()});
}

// Ends the connection because of the peer, and tells it why.
void connection::fault(const status& why) {
  if (phase_ == phase::closed)
    return;
  log().debug("closing the channel to {}: {}", describe_peer(), why.to_string());
  {
    std::lock_guard guard{send_mutex_};
    static_cast<void>(transmit(frame_kind::goodbye, 0, encode_goodbye(why), {}, true));
  }
  finish(why);
}

void connection::finish(const status& given) {
  status why = given;
  {
    std::lock_guard guard{send_mutex_};
    if (phase_ == phase::closed)
      return;
    if (phase_ == phase::closing)
      why = closing_why_;
    phase_ = phase::closed;
    loop_->expect(-static_cast<std::int64_t>(outstanding_));
    outstanding_ = 0;
    drop_waiting();
    queue_.clear();
  }
  auto keep = shared_from_this();
  loop_->cancel_timer(timer_);
  loop_->cancel_timer(drain_timer_);
  loop_->unwatch(stream_->fd());
  stream_->close();
  received_fds_.clear();
  if (auto handler = std::exchange(handler_, nullptr))
    handler->on_close(*this, why);
  auto hooks = std::exchange(hooks_, {});
  if (hooks.done)
    hooks.done(fail(why));
  if (hooks.gone)
    hooks.gone();
}

std::string connection::describe_peer() const {
  auto name = peer_.name.empty() ? std::string{"process"} : "peer " + peer_.name;
  return name +
    (peer_.address ? " at " + peer_.address->to_string() : fmt::format(" (pid {})", peer_.pid));
}

} // namespace millrace::net
