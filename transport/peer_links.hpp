// A driver's links to its peers, one for each channel. Kept by every driver that talks to its twin.
#pragma once

#include <millrace/transport/channel.hpp>

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

  void add(const channel& c, pointer link) {
    std::lock_guard guard{mutex_};
    links_[&c] = std::move(link);
  }
  /// Null if there is none.
  pointer find(const channel& c) const {
    std::lock_guard guard{mutex_};
    auto found = links_.find(&c);
    return found == links_.end() ? nullptr : found->second;
  }
  /// The same, and forgets it.
  pointer take(const channel& c) {
    std::lock_guard guard{mutex_};
    auto node = links_.extract(&c);
    return node ? std::move(node.mapped()) : nullptr;
  }
  /// One for which `wanted(link)` holds, which is asked under the lock; null if there is none.
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
  std::unordered_map<const channel*, pointer> links_;
};

} // namespace millrace::transport
