// A driver's links to its peers, one for each channel, found by channel and by peer. Kept by every driver that talks to
// its twin.
#pragma once

#include <millrace/core/ids.hpp>
#include <millrace/net/channel/channel.hpp>

#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace millrace::transport {

/// Threads: any.
template <class Link>
class peer_links {
public:
  using pointer = std::shared_ptr<Link>;

  void add(const net::channel& c, pointer link) {
    std::lock_guard guard{mutex_};
    by_peer_[c.peer().id].push_back(link);
    links_[&c] = std::move(link);
  }
  /// Null if there is none.
  pointer find(const net::channel& c) const {
    std::lock_guard guard{mutex_};
    auto found = links_.find(&c);
    return found == links_.end() ? nullptr : found->second;
  }
  /// The same, and forgets it.
  pointer take(const net::channel& c) {
    std::lock_guard guard{mutex_};
    auto node = links_.extract(&c);
    if (!node)
      return nullptr;
    auto of_peer = by_peer_.find(c.peer().id);
    std::erase(of_peer->second, node.mapped());
    if (of_peer->second.empty())
      by_peer_.erase(of_peer);
    return std::move(node.mapped());
  }
  /// The peer's first link for which `usable(link)` holds, which is asked under the lock; null if there is none.
  template <class F>
  pointer to(const peer_id& peer, F usable) const {
    std::lock_guard guard{mutex_};
    auto of_peer = by_peer_.find(peer);
    if (of_peer == by_peer_.end())
      return nullptr;
    for (auto& link : of_peer->second)
      if (usable(*link))
        return link;
    return nullptr;
  }
  /// One of any peer for which `wanted(link)` holds, asked under the lock; null if there is none. Looks at all of them.
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
  // The same; a peer may have several channels.
  std::unordered_map<peer_id, std::vector<pointer>> by_peer_;
};

} // namespace millrace::transport
