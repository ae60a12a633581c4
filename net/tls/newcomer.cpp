// How a connection proves itself: its first byte, TLS, the channel's handshake, all within one
// deadline.
#include <millrace/net/channel/refusal_log.hpp>
#include <millrace/net/channel/stream_acceptor.hpp>
#include <millrace/net/tls/newcomer.hpp>

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>

namespace millrace::net::tls {

namespace {

constexpr std::byte tls_first_byte{0x16}; // a handshake record

} // namespace

newcomer::newcomer(std::shared_ptr<network_admission> a, unique_fd fd, const socket_address& from)
  : source_(source_of(from)), admission_(std::move(a)), fd_(std::move(fd)), from_(from) {}

void newcomer::start() {
  number_ = admission_->newcomers.add(source_, [weak = weak_from_this()](const status& why) {
    if (auto c = weak.lock())
      c->refuse(why);
  });
  auto timeout_ms = admission_->options.handshake_timeout_ms;
  timer_ = admission_->loop->run_after(timeout_ms, [weak = weak_from_this(), timeout_ms] {
    if (auto c = weak.lock())
      c->refuse(status{
        errc::deadline_exceeded, "it did not finish the handshake within {} ms", timeout_ms});
  });
  auto watched = admission_->loop->watch(
    fd_.get(), EPOLLIN, [self = shared_from_this()](std::uint32_t) { self->on_first_byte(); });
  if (!watched.ok())
    refuse(watched);
}

void newcomer::on_first_byte() {
  auto keep = shared_from_this();
  std::byte byte{};
  auto n = ::recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR))
    return;
  // That is no refusal: a member that has reached this side at another address ends like this, too.
  if (n <= 0)
    return end(status{errc::peer_lost, "it closed the connection before sending anything"});
  if (byte == tls_first_byte)
    return begin_tls();
  if (byte != stream_acceptor::first_byte)
    return refuse(status{errc::protocol_error, "it does not speak TLS"});
  if (!admission_->where.streams)
    return refuse(status{errc::unsupported, "a bulk stream, which this service does not take"});
  admission_->loop->unwatch(fd_.get());
  auto fd = std::move(fd_);
  leave();
  admission_->where.streams->receive(std::move(fd), from_);
}

void newcomer::begin_tls() {
  admission_->loop->unwatch(fd_.get());
  auto made = stream::make(admission_->options.tls, handshake_side::acceptor, std::move(fd_));
  if (!made)
    return refuse(made.error());
  auto shaking = std::make_shared<handshake>(
    admission_->loop, std::move(*made),
    [self = shared_from_this()](result<std::unique_ptr<stream>> outcome) {
      if (outcome && !self->over_)
        self->begin_channel(std::move(*outcome));
      else if (!outcome)
        self->refuse(outcome.error());
    });
  handshake_ = shaking;
  shaking->start();
}

void newcomer::begin_channel(std::unique_ptr<stream> s) {
  connection_seed seed;
  seed.side = handshake_side::acceptor;
  seed.stream = std::move(s);
  seed.address = from_;
  seed.began = began_;
  admission_->loop->cancel_timer(timer_); // the connection keeps the same time from here on
  struct admitted_peer {
    std::optional<peer_info> peer;
    std::shared_ptr<void> place;
  };
  auto held = std::make_shared<admitted_peer>();
  connection_hooks hooks;
  hooks.admit = [self = shared_from_this(),
                 held](const peer_info& peer) -> result<std::shared_ptr<channel_handler>> {
    auto placed = self->admission_->admit(peer);
    if (!placed)
      return fail(placed.error());
    *held = {peer, std::move(placed->place)};
    self->leave();
    return std::move(placed->handler);
  };
  hooks.done = [self = shared_from_this()](const result<std::shared_ptr<channel>>& outcome) {
    if (!outcome)
      self->refuse(outcome.error());
  };
  hooks.gone = [a = admission_, held] {
    auto gone = std::exchange(*held, {});
    if (gone.peer)
      a->left(*gone.peer);
  };
  auto c = std::make_shared<connection>(
    admission_->loop, std::move(seed), admission_->options, std::move(hooks));
  connection_ = c;
  c->start();
}

void newcomer::refuse(const status& why) {
  if (over_)
    return;
  admission_->refused(source_, why);
  end(why);
}

void newcomer::end(const status& why) {
  auto keep = shared_from_this();
  leave();
  if (fd_)
    admission_->loop->unwatch(fd_.get());
  fd_ = unique_fd{};
  if (auto shaking = handshake_.lock())
    shaking->abort(why);
  if (auto c = connection_.lock())
    c->close(why, 0);
}

void newcomer::leave() {
  over_ = true;
  admission_->loop->cancel_timer(timer_);
  admission_->newcomers.remove(number_);
}

} // namespace millrace::net::tls
