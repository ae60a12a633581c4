// Bounding and refusing connections on behalf of a network's listener.
#include <millrace/net/tls/address.hpp>
#include <millrace/net/tls/network_admission.hpp>
#include <millrace/net/tls/newcomer.hpp>

#include <algorithm>

namespace millrace::net::tls {

void network_admission::receive(unique_fd fd, const socket_address& from) {
  prepare_tcp_socket(fd.get(), options);
  std::make_shared<newcomer>(
    std::static_pointer_cast<network_admission>(shared_from_this()), std::move(fd), from)
    ->start();
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

result<admitted> network_admission::admit(const peer_info& peer) {
  if (auto bad = check_name(peer); !bad.ok())
    return fail(bad);
  auto placed = place_for(peer);
  if (!placed || peer.name.starts_with(client_prefix))
    return placed;
  auto& processes = named_[peer.name];
  auto same = [&](const named_process& g) {
    return g.id == peer.id && g.host == peer.address->host();
  };
  auto found = std::find_if(processes.begin(), processes.end(), same);
  if (found == processes.end())
    found = processes.insert(processes.end(), {peer.id, peer.address->host(), 0});
  ++found->connections;
  return placed;
}

void network_admission::left(const peer_info& peer) {
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
