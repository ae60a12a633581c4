// Accepting, and the accepting side of an admission.
#include <millrace/core/log.hpp>
#include <millrace/net/channel/refusal_log.hpp>
#include <millrace/transport/tcp/gate.hpp>

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace millrace::transport::tcp {

namespace {

constexpr int accepts_per_turn = 32;
constexpr std::uint32_t backlog = 1024; // what overflows comes again after a second: members, too
// Without descriptors to accept with, the socket stays ready: look again a little later.
constexpr std::uint32_t pause_ms = 100;

} // namespace

struct gate::open_socket {
  net::unique_fd fd;
  net::socket_address at;
};

/// A socket that has not proved itself.
struct gate::guest {
  net::unique_fd fd;
  std::string source;
  std::uint64_t timer = 0;
  bool challenged = false;
  admission_message first{};
  admission_proof proof{};
  std::size_t got = 0; // of `first`, then of `proof`
  admission as;
  expected_group group;
  admission_challenge challenge{};
};

result<net::socket_address> gate::listen(const std::string& address) {
  auto parsed = net::socket_address::parse(address);
  if (!parsed)
    return fail(parsed.error());
  auto doing = "listening for streams at " + address;
  auto s = std::make_shared<open_socket>();
  s->fd = net::unique_fd{::socket(parsed->family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
  if (!s->fd)
    return fail(status_from_errno(errno, doing));
  int on = 1;
  ::setsockopt(s->fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (
    ::bind(s->fd.get(), parsed->get(), parsed->size_bytes()) != 0 ||
    ::listen(s->fd.get(), backlog) != 0) {
    auto code = errno == EADDRINUSE ? errc::already_exists : status_from_errno(errno, "").code();
    return fail(code, status_from_errno(errno, doing).detail());
  }
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  ::getsockname(s->fd.get(), reinterpret_cast<sockaddr*>(&bound), &size);
  auto at = net::socket_address::from(reinterpret_cast<const sockaddr*>(&bound), size);
  if (!at)
    return at;
  s->at = *at;
  loop_->post([weak = weak_from_this(), s] {
    if (auto g = weak.lock(); g && g->find_) {
      g->listening_.push_back(s);
      g->watch(s);
    }
  });
  return at;
}

void gate::watch(const std::shared_ptr<open_socket>& s) {
  auto watched = loop_->watch(s->fd.get(), EPOLLIN, [weak = weak_from_this(), s](std::uint32_t) {
    if (auto g = weak.lock())
      g->accept_some(s);
  });
  if (!watched.ok())
    log().error("cannot accept streams address={}: {}", s->at.to_string(), watched.to_string());
}

void gate::accept_some(const std::shared_ptr<open_socket>& s) {
  for (int i = 0; i < accepts_per_turn; ++i) {
    sockaddr_storage from{};
    socklen_t size = sizeof(from);
    net::unique_fd fd{::accept4(
      s->fd.get(), reinterpret_cast<sockaddr*>(&from), &size, SOCK_NONBLOCK | SOCK_CLOEXEC)};
    if (fd) {
      if (auto who = net::socket_address::from(reinterpret_cast<const sockaddr*>(&from), size))
        receive(std::move(fd), *who);
      continue;
    }
    if (net::lacks_descriptors(errno)) {
      net::no_descriptors_left(s->at.to_string());
      loop_->unwatch(s->fd.get());
      loop_->run_after(pause_ms, [weak = weak_from_this(), s] {
        if (auto g = weak.lock(); g && g->find_)
          g->watch(s);
      });
      return;
    }
    if (errno != ECONNABORTED && errno != EINTR)
      return;
  }
}

void gate::close() {
  loop_->post([g = shared_from_this()] {
    g->find_ = nullptr;
    for (auto& s : g->listening_)
      g->loop_->unwatch(s->fd.get());
    g->listening_.clear();
    while (!g->guests_.empty())
      g->remove(g->guests_.begin()->first);
  });
}

std::size_t gate::guests_of(const std::string& source) const {
  return static_cast<std::size_t>(std::count_if(
    guests_.begin(), guests_.end(), [&](auto& g) { return g.second->source == source; }));
}

void gate::make_room() {
  std::map<std::string, std::size_t> by_source;
  for (auto& [number, g] : guests_)
    ++by_source[g->source];
  auto most = std::max_element(
    by_source.begin(), by_source.end(), [](auto& a, auto& b) { return a.second < b.second; });
  auto oldest = std::find_if(
    guests_.begin(), guests_.end(), [&](auto& g) { return g.second->source == most->first; });
  refuse(oldest->first, {errc::busy, "too many streams ask for admission; this one was slow"});
}

void gate::receive(net::unique_fd fd, const net::socket_address& from) {
  if (!find_)
    return;
  auto source = net::source_of(from);
  if (guests_of(source) >= options_.admissions_per_source_max)
    return net::refused(source, {errc::busy, "too many streams of one source ask for admission"});
  if (guests_.size() >= options_.admissions_max)
    make_room();
  prepare_socket(fd.get(), options_);
  auto number = next_++;
  auto g = std::make_shared<guest>();
  g->fd = std::move(fd);
  g->source = std::move(source);
  auto watched =
    loop_->watch(g->fd.get(), EPOLLIN, [weak = weak_from_this(), number](std::uint32_t) {
      if (auto self = weak.lock())
        self->on_bytes(number);
    });
  if (!watched.ok())
    return net::refused(g->source, watched);
  g->timer = loop_->run_after(options_.admission_timeout_ms, [weak = weak_from_this(), number] {
    if (auto self = weak.lock())
      self->refuse(number, {errc::deadline_exceeded, "a stream did not prove itself in time"});
  });
  guests_.emplace(number, std::move(g));
}

// Reads no byte beyond the message that is due: what follows belongs to the stream.
void gate::on_bytes(std::uint64_t number) {
  while (true) {
    auto found = guests_.find(number);
    if (found == guests_.end())
      return;
    auto g = found->second;
    auto room = g->challenged ? std::span<std::byte>{g->proof} : std::span<std::byte>{g->first};
    auto n = ::recv(g->fd.get(), room.data() + g->got, room.size() - g->got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
      return;
    if (n <= 0) {
      auto polite = g->challenged || g->got == 0;
      return refuse(
        number,
        {polite ? errc::peer_lost : errc::protocol_error, "a stream ended within its admission"});
    }
    g->got += static_cast<std::size_t>(n);
    if (!g->challenged && g->first[0] != admission_first_byte)
      return refuse(number, {errc::protocol_error, "the first bytes are no stream's"});
    if (g->got < room.size())
      continue;
    g->got = 0;
    if (auto bad = on_message(*g); !bad.ok())
      return refuse(number, bad);
    if (!g->fd)
      return;
  }
}

void gate::retire(const group_id& group) {
  auto lifetime =
    std::chrono::milliseconds{options_.connect_timeout_ms + options_.admission_timeout_ms};
  retired_.push_back({group, steady_clock::now() + lifetime});
  // As many as there may be sockets of that wait to be accepted or admitted.
  if (retired_.size() > backlog + options_.admissions_max)
    retired_.pop_front();
}

bool gate::is_retired(const group_id& group) {
  auto now = steady_clock::now();
  while (!retired_.empty() && retired_.front().until <= now)
    retired_.pop_front();
  return std::any_of(retired_.begin(), retired_.end(), [&](auto& r) { return r.group == group; });
}

status gate::on_message(guest& g) { return g.challenged ? on_proof(g) : on_admission(g); }

status gate::on_admission(guest& g) {
  auto as = decode_admission(g.first);
  if (!as)
    return as.error();
  auto group = find_(as->group);
  if (!group && is_retired(as->group))
    return {errc::peer_lost, "a stream whose channel has closed"};
  if (!group)
    return {errc::permission_denied, "a stream of a group that is not expected"};
  g.as = *as;
  g.group = std::move(*group);
  g.challenged = true;
  random_bytes(g.challenge.data(), g.challenge.size());
  auto n = ::send(g.fd.get(), g.challenge.data(), g.challenge.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n != static_cast<ssize_t>(g.challenge.size()))
    return {errc::peer_lost, "a stream ended within its admission"};
  return {};
}

status gate::on_proof(guest& g) {
  if (!equal(prove_connector(g.group.key, g.first, g.challenge), g.proof))
    return {errc::permission_denied, "a stream whose proof does not fit its challenge"};
  auto ours = prove_acceptor(g.group.key, g.first, g.challenge);
  auto n = ::send(g.fd.get(), ours.data(), ours.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n != static_cast<ssize_t>(ours.size()))
    return {errc::peer_lost, "a stream ended within its admission"};
  loop_->cancel_timer(g.timer);
  loop_->unwatch(g.fd.get());
  auto out = std::make_shared<admitted_socket>();
  out->fd = std::move(g.fd);
  out->as = g.as;
  out->key = stream_key(g.group.key, g.first, g.challenge);
  auto entry =
    std::find_if(guests_.begin(), guests_.end(), [&](auto& e) { return e.second.get() == &g; });
  auto keep = entry->second;
  guests_.erase(entry);
  // A member that comes before we are ready for it is no stranger, nor one that has gone.
  auto bad = keep->group.take(std::move(out));
  if (!bad.ok() && bad.code() != errc::busy && bad.code() != errc::peer_lost)
    net::refused(keep->source, bad);
  return {};
}

void gate::refuse(std::uint64_t number, const status& why) {
  auto found = guests_.find(number);
  if (found == guests_.end())
    return;
  // It has gone by itself.
  if (why.code() != errc::peer_lost)
    net::refused(found->second->source, why);
  remove(number);
}

void gate::remove(std::uint64_t number) {
  auto found = guests_.find(number);
  loop_->cancel_timer(found->second->timer);
  loop_->unwatch(found->second->fd.get());
  guests_.erase(found);
}

} // namespace millrace::transport::tcp
