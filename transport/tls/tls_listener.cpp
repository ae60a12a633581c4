// Accepting connections from a network: strangers are few, short-lived, and refused in one line a minute.
// Opened by `listener::open`; runs on the node's I/O loop.
#include <millrace/core/log.hpp>
#include <millrace/transport/connection.hpp>
#include <millrace/transport/refusal_log.hpp>
#include <millrace/transport/tls/listening_sockets.hpp>
#include <millrace/transport/tls/tls_address.hpp>
#include <millrace/transport/tls/tls_channel.hpp>
#include <millrace/transport/tls/tls_handshake.hpp>

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>
#include <unordered_map>

namespace millrace::transport {

namespace {

constexpr int accepts_per_turn = 32;
// Without descriptors to accept with, the socket stays ready: look again a little later.
constexpr std::uint32_t pause_ms = 100;
constexpr unsigned char tls_first_byte = 0x16;   // a handshake record
constexpr unsigned char stream_first_byte = 'M'; // an admission to the tcp driver
constexpr std::string_view client_prefix = "client:";

using accept_function = std::function<std::shared_ptr<channel_handler>(const peer_info&)>;

// What one attacker has one of: an IPv4 address, or the network half of an IPv6 one.
std::string source_of(const socket_address& from) {
  if (from.family() != AF_INET6)
    return from.host();
  sockaddr_in6 v6{};
  std::memcpy(&v6, from.get(), sizeof(v6));
  std::memset(v6.sin6_addr.s6_addr + 8, 0, 8);
  auto network = socket_address::from(reinterpret_cast<const sockaddr*>(&v6), sizeof(v6));
  return network->host() + "/64";
}

class visitor;

/// The part of a listener that lives on the loop.
class tls_door : public std::enable_shared_from_this<tls_door> {
public:
  using visitors = std::list<visitor*>;

  tls_door(
    std::shared_ptr<io_loop> loop, listener_options where, const channel_options& options,
    accept_function accept, std::vector<unique_fd> sockets)
    : loop(std::move(loop)), where(std::move(where)), options(options), accept_(std::move(accept)),
      sockets_(std::move(sockets)) {}

  void open();
  void shut();  // any thread: once it returns, nobody is accepted any more
  void close(); // on the loop, after `shut`

  // For visitors.
  result<std::shared_ptr<channel_handler>> admit(const peer_info& peer);
  void left(const peer_info& peer);
  void forget(visitor& v);
  void refused(const std::string& source, const status& why);

  const std::shared_ptr<io_loop> loop;
  const listener_options where;
  const channel_options options;

private:
  // A process that has proved itself, under the node's name that it bears.
  struct guest {
    peer_id id;
    std::string host;
    std::uint32_t connections = 0;
  };

  void on_ready(int listening);
  bool accept_one(int listening);
  void pause();
  void receive(unique_fd fd, const socket_address& from);
  void make_room(const std::string& source);
  status check_name(const peer_info& peer) const;

  std::mutex accept_mutex_;
  accept_function accept_; // null once shut
  std::vector<unique_fd> sockets_;
  visitors visitors_; // the oldest first
  std::unordered_map<std::string, std::uint32_t> visitors_of_;
  std::uint32_t connections_ = 0;
  std::unordered_map<std::string, std::vector<guest>> guests_;
  refusal_log refusals_;
};

/// A connection until it has proved itself: first its first byte, then TLS, then the channel's handshake.
/// Kept alive by whatever it waits for on the loop; the door's list does not keep it.
class visitor : public std::enable_shared_from_this<visitor> {
public:
  visitor(std::shared_ptr<tls_door> door, unique_fd fd, const socket_address& from)
    : source(source_of(from)), door_(std::move(door)), fd_(std::move(fd)), from_(from) {}

  visitor(const visitor&) = delete;
  ~visitor() { door_->forget(*this); }

  void start();
  /// Ends it with a line in the log.
  void refuse(const status& why);

  const std::string source;
  tls_door::visitors::iterator place; // in the door's list, while `listed`
  bool listed = false;

private:
  void on_first_byte();
  void begin_tls();
  void begin_channel(std::unique_ptr<tls_stream> stream);
  void leave();

  const std::shared_ptr<tls_door> door_;
  unique_fd fd_;
  const socket_address from_;
  const time_point began_ = steady_clock::now();
  std::uint64_t timer_ = 0;
  bool over_ = false;
  std::weak_ptr<tls_handshake> handshake_;
  std::weak_ptr<connection> connection_;
};

void visitor::start() {
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

void visitor::on_first_byte() {
  auto keep = shared_from_this();
  unsigned char byte = 0;
  auto n = ::recv(fd_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR))
    return;
  if (n <= 0)
    return refuse(status{errc::peer_lost, "it closed the connection without a word"});
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

void visitor::begin_tls() {
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

void visitor::begin_channel(std::unique_ptr<tls_stream> stream) {
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

void visitor::refuse(const status& why) {
  auto keep = shared_from_this();
  if (std::exchange(over_, true))
    return;
  leave();
  door_->refused(source, why);
  if (fd_)
    door_->loop->unwatch(fd_.get());
  fd_ = unique_fd{};
  if (auto handshake = handshake_.lock())
    handshake->abort(why);
  if (auto c = connection_.lock())
    c->close(why, 0);
}

void visitor::leave() {
  over_ = true;
  door_->loop->cancel_timer(timer_);
  door_->forget(*this);
}

void tls_door::open() {
  for (auto& s : sockets_) {
    auto watched = loop->watch(
      s.get(), EPOLLIN, [d = shared_from_this(), fd = s.get()](std::uint32_t) { d->on_ready(fd); });
    if (!watched.ok())
      log().error("cannot accept connections address={}: {}", where.address, watched.to_string());
  }
}

void tls_door::shut() {
  std::lock_guard guard{accept_mutex_};
  accept_ = nullptr;
}

void tls_door::close() {
  for (auto& s : std::exchange(sockets_, {}))
    loop->unwatch(s.get());
  while (!visitors_.empty())
    visitors_.front()->refuse(status{errc::unavailable, "the service accepts no connections now"});
}

void tls_door::on_ready(int listening) {
  for (int i = 0; i < accepts_per_turn; ++i)
    if (!accept_one(listening))
      return;
}

bool tls_door::accept_one(int listening) {
  sockaddr_storage found{};
  socklen_t size = sizeof(found);
  auto* name = reinterpret_cast<sockaddr*>(&found);
  unique_fd fd{::accept4(listening, name, &size, SOCK_NONBLOCK | SOCK_CLOEXEC)};
  if (fd) {
    if (auto from = socket_address::from(name, size))
      receive(std::move(fd), without_mapping(*from));
    return true;
  }
  auto why = errno;
  if (why == EMFILE || why == ENFILE || why == ENOBUFS || why == ENOMEM) {
    refused("everywhere", status{errc::no_space, "no descriptors left to accept connections"});
    pause();
  }
  // Errors of the network belong to the one connection that was lost.
  return why != EAGAIN && why != EMFILE && why != ENFILE && why != ENOBUFS && why != ENOMEM &&
    why != EBADF && why != EINVAL;
}

void tls_door::pause() {
  for (auto& s : sockets_)
    loop->unwatch(s.get());
  loop->run_after(pause_ms, [weak = weak_from_this()] {
    if (auto d = weak.lock())
      d->open();
  });
}

void tls_door::receive(unique_fd fd, const socket_address& from) {
  prepare_tcp_socket(fd.get(), options);
  auto v = std::make_shared<visitor>(shared_from_this(), std::move(fd), from);
  make_room(v->source);
  v->place = visitors_.insert(visitors_.end(), v.get());
  v->listed = true;
  ++visitors_of_[v->source];
  v->start();
}

// An honest handshake takes milliseconds; so of too many it is the oldest that is the least likely to be one.
void tls_door::make_room(const std::string& source) {
  auto of_source = visitors_of_.find(source);
  if (of_source != visitors_of_.end() && of_source->second >= where.handshakes_per_source_max) {
    auto oldest = std::find_if(
      visitors_.begin(), visitors_.end(), [&](auto& v) { return v->source == source; });
    return (*oldest)->refuse(status{
      errc::busy,
      "more than " + std::to_string(where.handshakes_per_source_max) +
        " handshakes of this source at a time"});
  }
  if (visitors_.size() < where.handshakes_max)
    return;
  visitors_.front()->refuse(status{
    errc::busy, "more than " + std::to_string(where.handshakes_max) + " handshakes at a time"});
}

void tls_door::forget(visitor& v) {
  if (!std::exchange(v.listed, false))
    return;
  visitors_.erase(v.place);
  auto of_source = visitors_of_.find(v.source);
  if (--of_source->second == 0)
    visitors_of_.erase(of_source);
}

void tls_door::refused(const std::string& source, const status& why) {
  // That is this side's own end.
  if (why.code() == errc::unavailable)
    return;
  if (auto line = refusals_.note(source, why.to_string(), steady_clock::now()))
    log().warn("refused a connection address={} {}", where.address, *line);
}

// That the identity is its own a peer has proved with its key. A node's name has no key: while one host uses
// it, another host does not get it.
status tls_door::check_name(const peer_info& peer) const {
  auto known = guests_.find(peer.name);
  if (known == guests_.end())
    return {};
  for (auto& g : known->second)
    if (g.id != peer.id && g.host != peer.address->host())
      return {
        errc::permission_denied,
        "the name " + peer.name + " belongs to a node at " + g.host +
          ", which is connected; give every node a name of its own"};
  return {};
}

result<std::shared_ptr<channel_handler>> tls_door::admit(const peer_info& peer) {
  if (connections_ >= where.connections_max)
    return fail(
      errc::busy,
      "the service has all of its " + std::to_string(where.connections_max) + " connections");
  if (auto bad = check_name(peer); !bad.ok())
    return fail(bad);
  std::shared_ptr<channel_handler> handler;
  {
    std::lock_guard guard{accept_mutex_};
    if (accept_)
      handler = accept_(peer);
  }
  if (!handler)
    return fail(errc::unavailable, "the service accepts no connections now");
  ++connections_;
  if (peer.name.starts_with(client_prefix))
    return handler;
  auto& bearers = guests_[peer.name];
  auto same = [&](const guest& g) { return g.id == peer.id && g.host == peer.address->host(); };
  auto found = std::find_if(bearers.begin(), bearers.end(), same);
  if (found == bearers.end())
    found = bearers.insert(bearers.end(), {peer.id, peer.address->host(), 0});
  ++found->connections;
  return handler;
}

void tls_door::left(const peer_info& peer) {
  --connections_;
  auto known = guests_.find(peer.name);
  if (known == guests_.end())
    return;
  auto same = [&](const guest& g) { return g.id == peer.id && g.host == peer.address->host(); };
  auto found = std::find_if(known->second.begin(), known->second.end(), same);
  if (found != known->second.end() && --found->connections == 0)
    known->second.erase(found);
  if (known->second.empty())
    guests_.erase(known);
}

class tls_listener final : public listener {
public:
  tls_listener(std::shared_ptr<io_loop> loop, std::string address, std::shared_ptr<tls_door> d)
    : loop_(std::move(loop)), address_(std::move(address)), door_(std::move(d)) {
    loop_->post([d = door_] { d->open(); });
  }
  ~tls_listener() override { stop(); }

  const std::string& address() const noexcept override { return address_; }

  void stop() override {
    std::lock_guard guard{mutex_};
    auto d = std::exchange(door_, nullptr);
    if (!d)
      return;
    d->shut();
    loop_->post([d = std::move(d)] { d->close(); });
  }

private:
  const std::shared_ptr<io_loop> loop_;
  const std::string address_;
  std::mutex mutex_;
  std::shared_ptr<tls_door> door_;
};

} // namespace

result<std::shared_ptr<listener>> listen_tls(
  const std::shared_ptr<io_loop>& loop, const listener_options& where,
  const channel_options& options,
  std::function<std::shared_ptr<channel_handler>(const peer_info&)> accept) {
  if (!options.tls)
    return fail(tls_is_not_configured(where.address));
  auto sockets = open_listening_sockets(where.address);
  if (!sockets)
    return fail(sockets.error());
  auto exact = where;
  exact.address = sockets->address;
  auto d = std::make_shared<tls_door>(
    loop, std::move(exact), options, std::move(accept), std::move(sockets->fds));
  return std::make_shared<tls_listener>(loop, sockets->address, std::move(d));
}

} // namespace millrace::transport
