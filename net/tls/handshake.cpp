// Waits for the socket and continues the handshake until the stream is ready.
#include <millrace/net/tls/handshake.hpp>

#include <sys/epoll.h>

namespace millrace::net::tls {

handshake::handshake(std::shared_ptr<io_loop> loop, std::unique_ptr<stream> s, completed done)
  : loop_(std::move(loop)), stream_(std::move(s)), done_(std::move(done)) {}

handshake::~handshake() {
  if (auto done = std::exchange(done_, nullptr))
    done(fail(errc::unavailable, "the I/O loop has stopped"));
}

void handshake::start() {
  events_ = EPOLLIN;
  auto watched = loop_->watch(
    stream_->fd(), events_, [self = shared_from_this()](std::uint32_t) { self->step(); });
  if (!watched.ok())
    return end(fail(watched));
  step();
}

void handshake::step() {
  auto keep = shared_from_this();
  auto over = stream_->shake_hands();
  if (!over)
    return end(fail(over.error()));
  if (*over)
    return end(std::move(stream_));
  std::uint32_t wanted = EPOLLIN;
  if (stream_->has_unsent())
    wanted |= EPOLLOUT;
  if (std::exchange(events_, wanted) != wanted)
    static_cast<void>(loop_->rewatch(stream_->fd(), wanted));
}

void handshake::abort(const status& why) {
  if (done_)
    end(fail(why));
}

void handshake::end(result<std::unique_ptr<stream>> outcome) {
  auto keep = shared_from_this();
  auto* over = outcome ? outcome->get() : stream_.get();
  loop_->unwatch(over->fd());
  auto done = std::exchange(done_, nullptr);
  if (!outcome)
    stream_ = nullptr;
  if (done)
    done(std::move(outcome));
}

} // namespace millrace::net::tls
