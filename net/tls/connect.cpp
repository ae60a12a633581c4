// The connecting side over a network: names, several addresses, TLS, then the channel's handshake.
// Called by `connect`.
#include <millrace/net/channel/connection.hpp>
#include <millrace/net/socket/resolver.hpp>
#include <millrace/net/tls/address.hpp>
#include <millrace/net/tls/channel.hpp>
#include <millrace/net/tls/handshake.hpp>

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace millrace::net::tls {

namespace {

/// One attempt. Its callbacks on the loop keep it alive; if the loop drops them, the caller still
/// gets an answer.
class attempt : public std::enable_shared_from_this<attempt> {
public:
  attempt(
    std::shared_ptr<io_loop> loop, std::string address, const channel_options& options,
    std::shared_ptr<channel_handler> handler, completion<std::shared_ptr<channel>> done)
    : loop_(std::move(loop)), address_(std::move(address)), options_(options),
      handler_(std::move(handler)), done_(std::move(done)), began_(steady_clock::now()) {}
  attempt(const attempt&) = delete;
  ~attempt() { answer(status{errc::unavailable, "the I/O loop has stopped"}); }

  void run();

private:
  // A connection that is being made.
  struct runner {
    unique_fd fd;
    socket_address to;
  };

  void take_addresses(result<std::vector<socket_address>> found);
  void start_next();
  void arm_stagger();
  bool start(const socket_address& to);
  void on_writable(int fd);
  void note_failure(const socket_address& to, int error_number);
  void fail_if_none_left();
  void shake_hands(runner winner);
  void open(std::unique_ptr<stream> s, const socket_address& to);
  void drop_runners();
  void end(const status& why);
  void answer(const status& why);

  const std::shared_ptr<io_loop> loop_;
  const std::string address_;
  const channel_options options_;
  std::shared_ptr<channel_handler> handler_;
  completion<std::shared_ptr<channel>> done_;
  const time_point began_;
  const char* doing_ = "looking up its name";
  std::vector<socket_address> addresses_;
  std::size_t next_ = 0;
  std::vector<runner> runners_;
  std::weak_ptr<handshake> handshake_;
  std::string failures_;
  std::uint64_t deadline_timer_ = 0;
  std::uint64_t stagger_timer_ = 0;
};

void attempt::run() {
  auto where = parse_address(address_);
  if (!where)
    return answer(where.error());
  if (!options_.tls)
    return answer(not_configured(address_));
  if (where->port == 0)
    return answer(status{errc::invalid_argument, "address {}: port 0 is for listening", address_});
  auto deadline = began_ + std::chrono::milliseconds{options_.handshake_timeout_ms};
  deadline_timer_ = loop_->run_after(options_.handshake_timeout_ms, [weak = weak_from_this()] {
    if (auto a = weak.lock())
      a->end(status{
        errc::deadline_exceeded, "connecting to {} took more than {} ms; it was {}", a->address_,
        a->options_.handshake_timeout_ms, a->doing_});
  });
  auto names = options_.names ? options_.names : resolver::shared();
  names->resolve(loop_, where->host, where->port, deadline, [a = shared_from_this()](auto found) {
    a->take_addresses(std::move(found));
  });
}

void attempt::take_addresses(result<std::vector<socket_address>> found) {
  if (!done_)
    return;
  if (!found)
    return end(found.error().within("connecting to " + address_));
  doing_ = "waiting for the TCP connection";
  addresses_ = std::move(*found);
  start_next();
}

// Tries the next address, and soon the one after it if there is no answer.
void attempt::start_next() {
  while (done_ && next_ < addresses_.size())
    if (start(addresses_[next_++]))
      return arm_stagger();
  fail_if_none_left();
}

void attempt::arm_stagger() {
  loop_->cancel_timer(stagger_timer_);
  if (next_ < addresses_.size())
    stagger_timer_ = loop_->run_after(options_.stagger_ms, [weak = weak_from_this()] {
      if (auto a = weak.lock(); a && a->done_)
        a->start_next();
    });
}

bool attempt::start(const socket_address& to) {
  unique_fd fd{::socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
  if (!fd || (::connect(fd.get(), to.get(), to.size_bytes()) != 0 && errno != EINPROGRESS)) {
    note_failure(to, errno);
    return false;
  }
  auto raw = fd.get();
  runners_.push_back({std::move(fd), to});
  auto watched = loop_->watch(
    raw, EPOLLOUT, [a = shared_from_this(), raw](std::uint32_t) { a->on_writable(raw); });
  if (watched.ok())
    return true;
  runners_.pop_back();
  failures_ += (failures_.empty() ? "" : ", ") + watched.to_string();
  return false;
}

void attempt::on_writable(int fd) {
  auto keep = shared_from_this();
  auto found = std::find_if(
    runners_.begin(), runners_.end(), [&](const runner& r) { return r.fd.get() == fd; });
  if (found == runners_.end())
    return;
  int error_number = 0;
  socklen_t size = sizeof(error_number);
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error_number, &size) != 0)
    error_number = errno;
  auto finished = std::move(*found);
  runners_.erase(found);
  loop_->unwatch(fd);
  if (error_number == 0)
    return shake_hands(std::move(finished));
  note_failure(finished.to, error_number);
  start_next();
}

void attempt::note_failure(const socket_address& to, int error_number) {
  if (!failures_.empty())
    failures_ += ", ";
  failures_ += to.to_string() + ": " + std::strerror(error_number);
}

void attempt::fail_if_none_left() {
  if (done_ && runners_.empty() && next_ == addresses_.size())
    end(status{
      errc::unavailable,
      "connecting to {}: no address can be reached ({}); is the service running, and does it "
      "listen on that network?",
      address_, failures_});
}

void attempt::shake_hands(runner winner) {
  drop_runners();
  doing_ = "waiting for the TLS handshake";
  prepare_tcp_socket(winner.fd.get(), options_);
  auto made = stream::make(options_.tls, handshake_side::connector, std::move(winner.fd));
  if (!made)
    return end(made.error());
  auto shaking = std::make_shared<handshake>(
    loop_, std::move(*made),
    [a = shared_from_this(), to = winner.to](result<std::unique_ptr<stream>> outcome) {
      if (!outcome)
        a->end(
          outcome.error().within("connecting to " + a->address_ + " (" + to.to_string() + ")"));
      else if (a->done_)
        a->open(std::move(*outcome), to);
    });
  handshake_ = shaking;
  shaking->start();
}

void attempt::open(std::unique_ptr<stream> s, const socket_address& to) {
  loop_->cancel_timer(deadline_timer_);
  connection_seed seed;
  seed.stream = std::move(s);
  seed.address = to;
  seed.began = began_;
  auto hooks =
    connector_hooks(address_, options_, std::move(handler_), std::exchange(done_, nullptr));
  std::make_shared<connection>(loop_, std::move(seed), options_, std::move(hooks))->start();
}

void attempt::drop_runners() {
  loop_->cancel_timer(stagger_timer_);
  next_ = addresses_.size();
  for (auto& r : std::exchange(runners_, {}))
    loop_->unwatch(r.fd.get());
}

void attempt::end(const status& why) {
  auto keep = shared_from_this();
  drop_runners();
  loop_->cancel_timer(deadline_timer_);
  answer(why);
  if (auto shaking = handshake_.lock())
    shaking->abort(why);
}

void attempt::answer(const status& why) {
  if (auto done = std::exchange(done_, nullptr))
    done(fail(why));
}

} // namespace

void connect(
  const std::shared_ptr<io_loop>& loop, const std::string& address, const channel_options& options,
  std::shared_ptr<channel_handler> handler, completion<std::shared_ptr<channel>> done) {
  auto a = std::make_shared<attempt>(loop, address, options, std::move(handler), std::move(done));
  loop->post([a = std::move(a)] { a->run(); });
}

} // namespace millrace::net::tls
