// Accepting, bounding and refusing on behalf of a listener. Strangers are few and short-lived.
#include <millrace/core/log.hpp>
#include <millrace/net/channel/refusal_log.hpp>
#include <millrace/net/tls/tls_address.hpp>
#include <millrace/net/tls/tls_visitor.hpp>

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace millrace::net {

namespace {

constexpr int accepts_per_turn = 32;
// Without descriptors to accept with, the socket stays ready: look again a little later.
constexpr std::uint32_t pause_ms = 100;
constexpr std::string_view client_prefix = "client:";

} // namespace

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
  if (lacks_descriptors(why)) {
    no_descriptors_left(where.address);
    pause();
    return false;
  }
  // Errors of the network belong to the one connection that was lost.
  return why != EAGAIN && why != EBADF && why != EINVAL;
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
  auto v = std::make_shared<tls_visitor>(shared_from_this(), std::move(fd), from);
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

void tls_door::forget(tls_visitor& v) {
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
  net::refused(source, why, where.address);
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
  if (*connections_ >= where.connections_max)
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
  ++*connections_;
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
  --*connections_;
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

} // namespace millrace::net
