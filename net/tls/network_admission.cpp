// Bounding and refusing connections on behalf of a network's listener.
#include <millrace/net/channel/refusal_log.hpp>
#include <millrace/net/tls/address.hpp>
#include <millrace/net/tls/network_admission.hpp>
#include <millrace/net/tls/unproven_connection.hpp>

#include <algorithm>

namespace millrace::net::tls {

void network_admission::close() {
  admission::close();
  while (!unproven_.empty())
    unproven_.front()->refuse(status{errc::unavailable, "the service accepts no connections now"});
}

void network_admission::receive(unique_fd fd, const socket_address& from) {
  prepare_tcp_socket(fd.get(), options);
  auto c = std::make_shared<unproven_connection>(
    std::static_pointer_cast<network_admission>(shared_from_this()), std::move(fd), from);
  make_room(c->source);
  c->place = unproven_.insert(unproven_.end(), c.get());
  c->listed = true;
  ++unproven_of_source_[c->source];
  c->start();
}

// An honest handshake takes milliseconds, so of too many the oldest is the least likely to be one.
void network_admission::make_room(const std::string& source) {
  auto of_source = unproven_of_source_.find(source);
  if (
    of_source != unproven_of_source_.end() &&
    of_source->second >= where.handshakes_per_source_max) {
    auto oldest = std::find_if(
      unproven_.begin(), unproven_.end(), [&](auto& c) { return c->source == source; });
    return (*oldest)->refuse(status{
      errc::busy, "more than {} handshakes of this source at a time",
      where.handshakes_per_source_max});
  }
  if (unproven_.size() < where.handshakes_max)
    return;
  unproven_.front()->refuse(
    status{errc::busy, "more than {} handshakes at a time", where.handshakes_max});
}

void network_admission::forget(unproven_connection& c) {
  if (!std::exchange(c.listed, false))
    return;
  unproven_.erase(c.place);
  auto of_source = unproven_of_source_.find(c.source);
  if (--of_source->second == 0)
    unproven_of_source_.erase(of_source);
}

void network_admission::refused(const std::string& source, const status& why) {
  // This side itself is ending.
  if (why.code() == errc::unavailable)
    return;
  net::refused(source, why, where.address);
}

// The peer has proved its identity with its key. A node's name has no key: while one host uses it,
// another host is refused it.
status network_admission::check_name(const peer_info& peer) const {
  auto known = named_.find(peer.name);
  if (known == named_.end())
    return {};
  for (auto& g : known->second)
    if (g.id != peer.id && g.host != peer.address->host())
      return {
        errc::permission_denied,
        "the name {} belongs to a node at {}, which is connected; give every node a name of its "
        "own",
        peer.name, g.host};
  return {};
}

result<std::shared_ptr<channel_handler>> network_admission::admit(const peer_info& peer) {
  if (is_full())
    return fail(has_all_connections());
  if (auto bad = check_name(peer); !bad.ok())
    return fail(bad);
  auto handler = handler_for(peer);
  if (!handler)
    return handler;
  ++*connections_;
  if (peer.name.starts_with(client_prefix))
    return handler;
  auto& processes = named_[peer.name];
  auto same = [&](const named_process& g) {
    return g.id == peer.id && g.host == peer.address->host();
  };
  auto found = std::find_if(processes.begin(), processes.end(), same);
  if (found == processes.end())
    found = processes.insert(processes.end(), {peer.id, peer.address->host(), 0});
  ++found->connections;
  return handler;
}

void network_admission::left(const peer_info& peer) {
  --*connections_;
  auto known = named_.find(peer.name);
  if (known == named_.end())
    return;
  auto same = [&](const named_process& g) {
    return g.id == peer.id && g.host == peer.address->host();
  };
  auto found = std::find_if(known->second.begin(), known->second.end(), same);
  if (found != known->second.end() && --found->connections == 0)
    known->second.erase(found);
  if (known->second.empty())
    named_.erase(known);
}

} // namespace millrace::net::tls
