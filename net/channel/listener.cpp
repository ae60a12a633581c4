// Accepting connections: who may come in, how many, and how they are told why not.
// Opened by a node; runs on its I/O loop.
#include <millrace/core/log.hpp>
#include <millrace/net/channel/connection.hpp>
#include <millrace/net/channel/door_listener.hpp>
#include <millrace/net/channel/refusal_log.hpp>
#include <millrace/net/socket/socket_file.hpp>
#include <millrace/net/tls/tls_address.hpp>
#include <millrace/net/tls/tls_channel.hpp>

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <unordered_map>

namespace millrace::net {

namespace {

constexpr int accepts_per_turn = 32;
// Without descriptors to accept with, the socket stays ready: look again a little later.
constexpr std::uint32_t pause_ms = 100;

using accept_function = std::function<std::shared_ptr<channel_handler>(const peer_info&)>;

/// The part of a listener that lives on the loop.
class door : public std::enable_shared_from_this<door> {
public:
  door(
    std::shared_ptr<io_loop> loop, listener_options where, const channel_options& options,
    accept_function accept, std::unique_ptr<socket_file> file)
    : loop_(std::move(loop)), where_(std::move(where)), options_(options),
      accept_(std::move(accept)), file_(std::move(file)), connections_(counter_of(where_)) {}

  void open();
  void shut();  // any thread: once it returns, nobody is accepted any more
  void close(); // on the loop, after `shut`

private:
  struct guests {
    std::uint32_t pid = 0;
    std::uint32_t connections = 0;
  };
  using guest_id = std::shared_ptr<std::optional<peer_id>>;

  void on_ready();
  bool accept_one();
  void pause();
  void receive(unique_fd fd);
  status check(const peer_credentials& who) const;
  result<std::shared_ptr<channel_handler>> admit(const peer_info& peer, const guest_id& id);
  void left(const guest_id& id);

  const std::shared_ptr<io_loop> loop_;
  const listener_options where_;
  const channel_options options_;
  std::mutex accept_mutex_;
  accept_function accept_; // null once shut
  std::unique_ptr<socket_file> file_;
  const std::shared_ptr<std::uint32_t> connections_;
  std::unordered_map<peer_id, guests> guests_;
};

void door::open() {
  if (!file_)
    return;
  auto watched =
    loop_->watch(file_->fd(), EPOLLIN, [d = shared_from_this()](std::uint32_t) { d->on_ready(); });
  if (!watched.ok())
    log().error("cannot accept connections address={}: {}", where_.address, watched.to_string());
}

void door::shut() {
  std::lock_guard guard{accept_mutex_};
  accept_ = nullptr;
  file_->remove();
}

void door::close() {
  loop_->unwatch(file_->fd());
  file_ = nullptr;
}

void door::on_ready() {
  for (int i = 0; i < accepts_per_turn; ++i)
    if (!accept_one())
      return;
}

bool door::accept_one() {
  unique_fd fd{::accept4(file_->fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
  if (fd) {
    receive(std::move(fd));
    return true;
  }
  auto why = errno;
  if (lacks_descriptors(why)) {
    no_descriptors_left(where_.address);
    pause();
  }
  return why == ECONNABORTED || why == EINTR;
}

void door::pause() {
  loop_->unwatch(file_->fd());
  loop_->run_after(pause_ms, [weak = weak_from_this()] {
    if (auto d = weak.lock())
      d->open();
  });
}

void tell_why_not(int fd, const status& why) {
  auto body = encode_goodbye(why);
  auto head = encode_header({frame_kind::goodbye, 0, static_cast<std::uint32_t>(body.size()), 0});
  iovec parts[]{{head.data(), head.size()}, {body.data(), body.size()}};
  send_with_fds(fd, parts, {});
}

void door::receive(unique_fd fd) {
  auto who = credentials_of(fd.get());
  auto allowed = who ? check(*who) : who.error();
  if (!allowed.ok()) {
    log().warn("refused a connection address={}: {}", where_.address, allowed.to_string());
    return tell_why_not(fd.get(), allowed);
  }
  if (*connections_ >= where_.connections_max)
    return tell_why_not(
      fd.get(),
      status{
        errc::busy,
        "the service has all of its " + std::to_string(where_.connections_max) + " connections"});
  ++*connections_;
  auto id = std::make_shared<std::optional<peer_id>>();
  connection_hooks hooks;
  hooks.admit = [d = shared_from_this(), id](const peer_info& peer) { return d->admit(peer, id); };
  hooks.gone = [d = shared_from_this(), id] { d->left(id); };
  connection_seed seed;
  seed.side = handshake_side::acceptor;
  seed.stream = make_unix_stream(std::move(fd));
  seed.who = *who;
  seed.began = steady_clock::now();
  std::make_shared<connection>(loop_, std::move(seed), options_, std::move(hooks))->start();
}

status door::check(const peer_credentials& who) const {
  if (
    who.uid == ::geteuid() || who.uid == 0 ||
    std::count(where_.allow_uids.begin(), where_.allow_uids.end(), who.uid) > 0)
    return {};
  return status{
    errc::permission_denied,
    "user " + std::to_string(who.uid) + " (pid " + std::to_string(who.pid) +
      ") may not use this service; its owner can list the user"};
}

// A process names itself; that two processes bear one name means that one of them lies.
result<std::shared_ptr<channel_handler>> door::admit(const peer_info& peer, const guest_id& id) {
  auto known = guests_.find(peer.id);
  if (known != guests_.end() && known->second.pid != peer.pid)
    return fail(
      errc::permission_denied,
      "the identity belongs to the process " + std::to_string(known->second.pid));
  std::shared_ptr<channel_handler> handler;
  {
    std::lock_guard guard{accept_mutex_};
    if (accept_)
      handler = accept_(peer);
  }
  if (!handler)
    return fail(errc::unavailable, "the service accepts no connections now");
  *id = peer.id;
  auto& entry = guests_[peer.id];
  entry.pid = peer.pid;
  ++entry.connections;
  return handler;
}

void door::left(const guest_id& id) {
  --*connections_;
  if (!*id)
    return;
  auto found = guests_.find(**id);
  if (--found->second.connections == 0)
    guests_.erase(found);
}

} // namespace

result<std::shared_ptr<listener>> listener::open(
  const std::shared_ptr<io_loop>& loop, const listener_options& where,
  const channel_options& options,
  std::function<std::shared_ptr<channel_handler>(const peer_info&)> accept) {
  if (where.address.starts_with(tls_scheme))
    return listen_tls(loop, where, options, std::move(accept));
  auto file = socket_file::bind(where.address, where.socket_mode);
  if (!file)
    return fail(file.error());
  auto d = std::make_shared<door>(loop, where, options, std::move(accept), std::move(*file));
  return std::make_shared<door_listener<door>>(loop, where.address, std::move(d));
}

} // namespace millrace::net
