// A driver's links to its peers, one for each channel, found by channel and by peer.
// Used by every driver that talks to the same driver in another process.
#pragma once

#include <millrace/core/ids.hpp>
#include <millrace/net/channel/channel.hpp>

#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace millrace::transport {

/// Finds links by channel and by peer. Threads: any.
template <class Link>
class peer_links {
public:
  using pointer = std::shared_ptr<Link>;

  void add(const net::channel& c, pointer link) {
    std::lock_guard guard{mutex_};
    by_peer_[c.peer().id].emplace_back(c.number(), link);
    links_[&c] = std::move(link);
  }
  /// Returns null if there is none.
  pointer find(const net::channel& c) const {
    std::lock_guard guard{mutex_};
    auto found = links_.find(&c);
    return found == links_.end() ? nullptr : found->second;
  }
  /// Returns the link and forgets it; null if there is none.
  pointer take(const net::channel& c) {
    std::lock_guard guard{mutex_};
    auto node = links_.extract(&c);
    if (!node)
      return nullptr;
    auto of_peer = by_peer_.find(c.peer().id);
    std::erase_if(of_peer->second, [&](auto& one) { return one.second == node.mapped(); });
    if (of_peer->second.empty())
      by_peer_.erase(of_peer);
    return std::move(node.mapped());
  }
  /// Returns the link of channel number `channel` if `usable(link)` holds, else the first of the
  /// peer for which it does; null if there is none. Calls `usable` under the lock.
  template <class F>
  pointer to(const peer_id& peer, F usable, std::uint64_t channel = 0) const {
    std::lock_guard guard{mutex_};
    auto of_peer = by_peer_.find(peer);
    if (of_peer == by_peer_.end())
      return nullptr;
    pointer first;
    for (auto& [number, link] : of_peer->second)
      if (usable(*link)) {
        if (channel == 0 || number == channel)
          return link;
        if (!first)
          first = link;
      }
    return first;
  }
  /// Returns a link of any peer for which `wanted(link)` holds; null if there is none. Looks at all
  /// links, and calls `wanted` under the lock.
  template <class F>
  pointer find_if(F wanted) const {
    std::lock_guard guard{mutex_};
    for (auto& [c, link] : links_)
      if (wanted(*link))
        return link;
    return nullptr;
  }
  std::vector<pointer> all() const {
    std::lock_guard guard{mutex_};
    std::vector<pointer> out;
    out.reserve(links_.size());
    for (auto& [c, link] : links_)
      out.push_back(link);
    return out;
  }

private:
  mutable std::mutex mutex_;
  std::unordered_map<const net::channel*, pointer> links_;
  // The same links by peer; a peer may have several channels.
  std::unordered_map<peer_id, std::vector<std::pair<std::uint64_t, pointer>>> by_peer_;
};

} // namespace millrace::transport
