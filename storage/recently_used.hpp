// The order in which models were last used. Kept by buckets that evict.
#pragma once

#include <list>
#include <string>
#include <unordered_map>

namespace millrace::storage {

/// Names, least recently used first. Not thread-safe: the owner's lock guards it.
class recently_used {
public:
  /// Makes a name the most recently used one.
  void touch(const std::string& name) {
    auto place = places_.find(name);
    if (place != places_.end()) {
      order_.splice(order_.end(), order_, place->second);
    } else {
      order_.push_back(name);
      places_.emplace(name, std::prev(order_.end()));
    }
  }

  void forget(const std::string& name) {
    auto place = places_.find(name);
    if (place == places_.end())
      return;
    order_.erase(place->second);
    places_.erase(place);
  }

  const std::list<std::string>& oldest_first() const noexcept { return order_; }

private:
  std::list<std::string> order_;
  std::unordered_map<std::string, std::list<std::string>::iterator> places_;
};

} // namespace millrace::storage
