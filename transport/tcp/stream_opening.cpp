// The connecting side of a stream proof: connect, first message, challenge, and both proofs.
#include <millrace/transport/tcp/stream_opening.hpp>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <system_error>

namespace millrace::transport::tcp {

namespace {

template <class T>
void set(int fd, int level, int name, T value) {
  // The stream works even if the kernel lacks one of these options.
  static_cast<void>(::setsockopt(fd, level, name, &value, sizeof(value)));
}

class opening : public std::enable_shared_from_this<opening> {
public:
  opening(
    std::shared_ptr<net::io_loop> loop, const tcp_options& options,
    std::vector<net::socket_address> addresses, const net::channel_key& key, const stream_claim& as,
    completion<std::shared_ptr<admitted_socket>> done)
    : loop_(std::move(loop)), options_(options), addresses_(std::move(addresses)), key_(key),
      as_(as), done_(std::move(done)) {}

  void try_next() {
    if (next_ == addresses_.size())
      return finish(fail(why_));
    auto& to = addresses_[next_++];
    fd_ = net::unique_fd{::socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
    if (!fd_)
      return failed(status_from_errno(errno, "making a socket for a stream"));
    prepare_socket(fd_.get(), options_);
    if (::connect(fd_.get(), to.get(), to.size_bytes()) != 0 && errno != EINPROGRESS)
      return failed(refusal(errno));
    connected_ = false;
    challenged_ = false;
    got_ = 0;
    auto watched =
      loop_->watch(fd_.get(), EPOLLOUT, [s = shared_from_this()](std::uint32_t) { s->on_ready(); });
    if (!watched.ok())
      return failed(watched);
    watching_ = true;
    arm(options_.connect_timeout_ms, "did not answer");
  }

private:
  status refusal(int error_number) const {
    return {
      errc::unavailable, "connecting a stream to {}: {}", addresses_[next_ - 1].to_string(),
      std::generic_category().message(error_number)};
  }

  void arm(std::uint32_t timeout_ms, const char* what) {
    loop_->cancel_timer(timer_);
    timer_ = loop_->run_after(timeout_ms, [weak = weak_from_this(), what, timeout_ms] {
      if (auto s = weak.lock())
        s->failed(
          {errc::deadline_exceeded, "{} {} within {} ms", s->addresses_[s->next_ - 1].to_string(),
           what, timeout_ms});
    });
  }

  void drop() {
    loop_->cancel_timer(timer_);
    if (std::exchange(watching_, false))
      loop_->unwatch(fd_.get());
  }

  void failed(status why) {
    auto keep = shared_from_this();
    drop();
    fd_ = {};
    why_ = std::move(why);
    try_next();
  }

  void finish(result<std::shared_ptr<admitted_socket>> outcome) {
    if (auto done = std::exchange(done_, nullptr))
      done(std::move(outcome));
  }

  void on_ready() {
    auto keep = shared_from_this();
    if (!connected_)
      return on_connected();
    while (done_ && fd_) {
      auto n = ::recv(fd_.get(), in_.data() + got_, in_.size() - got_, MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
      if (n <= 0)
        return failed(
          {errc::permission_denied,
           addresses_[next_ - 1].to_string() + " closed a stream instead of admitting it"});
      got_ += static_cast<std::size_t>(n);
      if (got_ < in_.size())
        continue;
      got_ = 0;
      if (!challenged_)
        on_challenge();
      else
        return on_proof();
    }
  }

  void on_connected() {
    int error_number = 0;
    socklen_t size = sizeof(error_number);
    ::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error_number, &size);
    if (error_number != 0)
      return failed(refusal(error_number));
    connected_ = true;
    random_bytes(as_.nonce.data(), as_.nonce.size());
    first_ = encode_claim(as_);
    arm(options_.admission_timeout_ms, "did not admit a stream");
    if (!send(first_))
      return;
    if (auto bad = loop_->rewatch(fd_.get(), EPOLLIN); !bad.ok())
      failed(bad);
  }

  // A new socket takes such small messages whole.
  template <class Message>
  bool send(const Message& m) {
    auto n = ::send(fd_.get(), m.data(), m.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n == static_cast<ssize_t>(m.size()))
      return true;
    failed(refusal(n < 0 ? errno : EMSGSIZE));
    return false;
  }

  void on_challenge() {
    challenged_ = true;
    challenge_ = in_;
    send(prove_connector(key_, first_, challenge_));
  }

  void on_proof() {
    if (!equal(prove_acceptor(key_, first_, challenge_), in_))
      return failed(
        {errc::permission_denied,
         addresses_[next_ - 1].to_string() + " does not have the key of our channel"});
    drop();
    auto out = std::make_shared<admitted_socket>();
    out->fd = std::move(fd_);
    out->as = as_;
    out->key = stream_key(key_, first_, challenge_);
    finish(std::move(out));
  }

  const std::shared_ptr<net::io_loop> loop_;
  const tcp_options options_;
  const std::vector<net::socket_address> addresses_;
  const net::channel_key key_;
  stream_claim as_;
  completion<std::shared_ptr<admitted_socket>> done_;
  std::size_t next_ = 0;
  status why_{errc::unavailable, "the peer has not sent an address for streams"};
  net::unique_fd fd_;
  bool watching_ = false;
  bool connected_ = false;
  bool challenged_ = false;
  std::uint64_t timer_ = 0;
  claim_message first_{};
  stream_challenge challenge_{};
  std::array<std::byte, 32> in_{};
  std::size_t got_ = 0;
};

} // namespace

void prepare_socket(int fd, const tcp_options& options) {
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  if (options.keepalive_ms > 0) {
    // The kernel counts seconds. A part of a second must not become 0, which means "never".
    auto seconds = static_cast<int>((options.keepalive_ms + 999) / 1000);
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, seconds);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, std::max(seconds / 3, 1));
    set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
  }
  if (options.send_buffer_bytes > 0)
    set(fd, SOL_SOCKET, SO_SNDBUF, static_cast<int>(options.send_buffer_bytes));
  if (options.receive_buffer_bytes > 0)
    set(fd, SOL_SOCKET, SO_RCVBUF, static_cast<int>(options.receive_buffer_bytes));
}

void open_stream(
  const std::shared_ptr<net::io_loop>& loop, const tcp_options& options,
  std::vector<net::socket_address> addresses, const net::channel_key& key, const stream_claim& as,
  completion<std::shared_ptr<admitted_socket>> done) {
  std::make_shared<opening>(loop, options, std::move(addresses), key, as, std::move(done))
    ->try_next();
}

} // namespace millrace::transport::tcp
