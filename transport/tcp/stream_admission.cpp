// The accepting side of a stream proof: first message, challenge, proof.
#include <millrace/core/log.hpp>
#include <millrace/net/channel/refusal_log.hpp>
#include <millrace/transport/tcp/stream_admission.hpp>

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace millrace::transport::tcp {

/// A socket that has not proved itself.
struct stream_admission::newcomer {
  net::unique_fd fd;
  std::string source;
  net::newcomers::number number = 0;
  std::uint64_t timer = 0;
  bool challenged = false;
  claim_message first{};
  stream_proof proof{};
  std::size_t got = 0; // bytes of `first`, then of `proof`
  stream_claim as;
  expected_group group;
  stream_challenge challenge{};
};

result<net::socket_address> stream_admission::listen(const std::string& address) {
  auto parsed = net::socket_address::parse(address);
  if (!parsed)
    return parsed;
  auto fd = net::listen_at(*parsed, "listening for streams at " + address);
  if (!fd)
    return fail(fd.error());
  auto at = net::bound_address(fd->get());
  if (!at)
    return at;
  std::vector<net::unique_fd> sockets;
  sockets.push_back(std::move(*fd));
  auto made = std::make_shared<net::acceptor>(
    loop_, at->to_string(), std::move(sockets),
    [weak = weak_from_this()](net::unique_fd accepted, const net::socket_address& from) {
      if (auto self = weak.lock())
        self->receive(std::move(accepted), from);
    });
  loop_->post([weak = weak_from_this(), made] {
    if (auto self = weak.lock(); self && self->find_) {
      self->acceptors_.push_back(made);
      made->open();
    }
  });
  return at;
}

void stream_admission::close() {
  loop_->post([self = shared_from_this()] {
    self->find_ = nullptr;
    for (auto& a : std::exchange(self->acceptors_, {}))
      a->close();
    while (!self->sockets_.empty())
      self->remove(self->sockets_.begin()->first);
  });
}

void stream_admission::receive(net::unique_fd fd, const net::socket_address& from) {
  if (!find_)
    return;
  prepare_socket(fd.get(), options_);
  auto s = std::make_shared<newcomer>();
  s->fd = std::move(fd);
  s->source = net::source_of(from);
  auto number = newcomers_.add(s->source, [this, n = std::weak_ptr{s}](const status& why) {
    if (auto displaced = n.lock())
      refuse(displaced->number, why);
  });
  s->number = number;
  auto watched =
    loop_->watch(s->fd.get(), EPOLLIN, [weak = weak_from_this(), number](std::uint32_t) {
      if (auto self = weak.lock())
        self->on_bytes(number);
    });
  if (!watched.ok()) {
    newcomers_.remove(number);
    return net::refused(s->source, watched);
  }
  s->timer = loop_->run_after(options_.admission_timeout_ms, [weak = weak_from_this(), number] {
    if (auto self = weak.lock())
      self->refuse(number, {errc::deadline_exceeded, "a stream did not prove itself in time"});
  });
  sockets_.emplace(number, std::move(s));
}

// Reads no byte beyond the message that is due, since later bytes belong to the stream.
void stream_admission::on_bytes(std::uint64_t number) {
  while (true) {
    auto found = sockets_.find(number);
    if (found == sockets_.end())
      return;
    auto s = found->second;
    auto room = s->challenged ? std::span<std::byte>{s->proof} : std::span<std::byte>{s->first};
    auto n = ::recv(s->fd.get(), room.data() + s->got, room.size() - s->got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
      return;
    if (n <= 0) {
      auto polite = s->challenged || s->got == 0;
      return refuse(
        number,
        {polite ? errc::peer_lost : errc::protocol_error, "a stream ended within its admission"});
    }
    s->got += static_cast<std::size_t>(n);
    if (!s->challenged && s->first[0] != net::stream_acceptor::first_byte)
      return refuse(number, {errc::protocol_error, "the first bytes are no stream's"});
    if (s->got < room.size())
      continue;
    s->got = 0;
    if (auto bad = on_message(*s); !bad.ok())
      return refuse(number, bad);
    if (!s->fd)
      return;
  }
}

void stream_admission::retire(const group_id& group) {
  auto lifetime =
    std::chrono::milliseconds{options_.connect_timeout_ms + options_.admission_timeout_ms};
  retired_.push_back({group, steady_clock::now() + lifetime});
  // This many sockets may wait to be accepted or admitted.
  if (retired_.size() > net::tcp_backlog + options_.admissions_max)
    retired_.pop_front();
}

bool stream_admission::is_retired(const group_id& group) {
  auto now = steady_clock::now();
  while (!retired_.empty() && retired_.front().until <= now)
    retired_.pop_front();
  return std::any_of(retired_.begin(), retired_.end(), [&](auto& r) { return r.group == group; });
}

status stream_admission::on_message(newcomer& s) {
  return s.challenged ? on_proof(s) : on_claim(s);
}

status stream_admission::on_claim(newcomer& s) {
  auto as = decode_claim(s.first);
  if (!as)
    return as.error();
  auto group = find_(as->group);
  if (!group && is_retired(as->group))
    return {errc::peer_lost, "a stream whose channel has closed"};
  if (!group)
    return {errc::permission_denied, "a stream of a group that is not expected"};
  s.as = *as;
  s.group = std::move(*group);
  s.challenged = true;
  random_bytes(s.challenge.data(), s.challenge.size());
  auto n = ::send(s.fd.get(), s.challenge.data(), s.challenge.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n != static_cast<ssize_t>(s.challenge.size()))
    return {errc::peer_lost, "a stream ended within its admission"};
  return {};
}

status stream_admission::on_proof(newcomer& s) {
  if (!equal(prove_connector(s.group.key, s.first, s.challenge), s.proof))
    return {errc::permission_denied, "a stream whose proof does not fit its challenge"};
  auto ours = prove_acceptor(s.group.key, s.first, s.challenge);
  auto n = ::send(s.fd.get(), ours.data(), ours.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n != static_cast<ssize_t>(ours.size()))
    return {errc::peer_lost, "a stream ended within its admission"};
  loop_->cancel_timer(s.timer);
  loop_->unwatch(s.fd.get());
  auto out = std::make_shared<admitted_socket>();
  out->fd = std::move(s.fd);
  out->as = s.as;
  out->key = stream_key(s.group.key, s.first, s.challenge);
  auto keep = sockets_.extract(s.number).mapped();
  newcomers_.remove(s.number);
  // A member that comes too early, or whose channel has closed, is no stranger.
  auto bad = keep->group.take(std::move(out));
  if (!bad.ok() && bad.code() != errc::busy && bad.code() != errc::peer_lost)
    net::refused(keep->source, bad);
  return {};
}

void stream_admission::refuse(std::uint64_t number, const status& why) {
  auto found = sockets_.find(number);
  if (found == sockets_.end())
    return;
  // The other side has ended the stream.
  if (why.code() != errc::peer_lost)
    net::refused(found->second->source, why);
  remove(number);
}

void stream_admission::remove(std::uint64_t number) {
  auto found = sockets_.find(number);
  loop_->cancel_timer(found->second->timer);
  loop_->unwatch(found->second->fd.get());
  newcomers_.remove(number);
  sockets_.erase(found);
}

} // namespace millrace::transport::tcp
