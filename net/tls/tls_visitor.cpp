// A visitor's way in: its first byte, TLS, the channel's handshake, each within one deadline.
#include <millrace/net/channel/refusal_log.hpp>
#include <millrace/net/tls/tls_visitor.hpp>

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>

namespace millrace::net {

namespace {

constexpr unsigned char tls_first_byte = 0x16;   // a handshake record
constexpr unsigned char stream_first_byte = 'M'; // an admission to the tcp driver

} // namespace

tls_visitor::tls_visitor(std::shared_ptr<tls_door> door, unique_fd fd, const socket_address& from)
  : source(source_of(from)), door_(std::move(door)), fd_(std::move(fd)), from_(from) {}

void tls_visitor::start() {
  auto timeout_ms = door_->options.handshake_timeout_ms;
  timer_ = door_->loop->run_after(timeout_ms, [weak = weak_from_this(), timeout_ms] {
    if (auto v = weak.lock())
      v->refuse(status{
        errc::deadline_exceeded,
        "it did not finish the handshake within " + std::to_string(timeout_ms) + " ms"});
  });
  auto watched = door_->loop->watch(
    fd_.get(), EPOLLIN, [self = shared_from_this()](std::uint32_t) { self->on_first_byte(); });
  if (!watched.ok())
    refuse(watched);
}

void tls_visitor::on_first_byte() {
  auto keep = shared_from_this();
  unsigned char byte = 0;
  auto n = ::recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR))
    return;
  // Nothing was refused to it: a member that has reached us at another address leaves so, too.
  if (n <= 0)
    return end(status{errc::peer_lost, "it closed the connection without a word"});
  if (byte == tls_first_byte)
    return begin_tls();
  if (byte != stream_first_byte)
    return refuse(status{errc::protocol_error, "it does not speak TLS"});
  if (!door_->where.streams)
    return refuse(status{errc::unsupported, "a bulk stream, which this service does not take"});
  door_->loop->unwatch(fd_.get());
  auto fd = std::move(fd_);
  leave();
  door_->where.streams->receive(std::move(fd), from_);
}

void tls_visitor::begin_tls() {
  door_->loop->unwatch(fd_.get());
  auto stream = tls_stream::make(door_->options.tls, handshake_side::acceptor, std::move(fd_));
  if (!stream)
    return refuse(stream.error());
  auto handshake = std::make_shared<tls_handshake>(
    door_->loop, std::move(*stream),
    [self = shared_from_this()](result<std::unique_ptr<tls_stream>> outcome) {
      if (outcome && !self->over_)
        self->begin_channel(std::move(*outcome));
      else if (!outcome)
        self->refuse(outcome.error());
    });
  handshake_ = handshake;
  handshake->start();
}

void tls_visitor::begin_channel(std::unique_ptr<tls_stream> stream) {
  connection_seed seed;
  seed.side = handshake_side::acceptor;
  seed.stream = std::move(stream);
  seed.address = from_;
  seed.began = began_;
  door_->loop->cancel_timer(timer_); // the connection keeps the same time from here on
  auto admitted = std::make_shared<std::optional<peer_info>>();
  connection_hooks hooks;
  hooks.admit = [self = shared_from_this(), admitted](const peer_info& peer) {
    auto handler = self->door_->admit(peer);
    if (handler) {
      *admitted = peer;
      self->leave();
    }
    return handler;
  };
  hooks.done = [self = shared_from_this()](const result<std::shared_ptr<channel>>& outcome) {
    if (!outcome)
      self->refuse(outcome.error());
  };
  hooks.gone = [door = door_, admitted] {
    if (*admitted)
      door->left(**admitted);
  };
  auto c =
    std::make_shared<connection>(door_->loop, std::move(seed), door_->options, std::move(hooks));
  connection_ = c;
  c->start();
}

void tls_visitor::refuse(const status& why) {
  if (over_)
    return;
  door_->refused(source, why);
  end(why);
}

void tls_visitor::end(const status& why) {
  auto keep = shared_from_this();
  leave();
  if (fd_)
    door_->loop->unwatch(fd_.get());
  fd_ = unique_fd{};
  if (auto handshake = handshake_.lock())
    handshake->abort(why);
  if (auto c = connection_.lock())
    c->close(why, 0);
}

void tls_visitor::leave() {
  over_ = true;
  door_->loop->cancel_timer(timer_);
  door_->forget(*this);
}

} // namespace millrace::net
