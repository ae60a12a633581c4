// The order in which models were last used. Kept by buckets that evict.
#pragma once

#include <list>
#include <string>
#include <unordered_map>

namespace millrace::storage {

/// Names of models, least recently used first. Not thread-safe: the owner's lock guards it.
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

  /// Tells that a version was published under a name. What is no model is not kept.
  void put(const std::string& name, bool is_model) { is_model ? touch(name) : forget(name); }

  void forget(const std::string& name) {
    auto place = places_.find(name);
    if (place == places_.end())
      return;
    order_.erase(place->second);
    places_.erase(place);
  }

  const std::list<std::string>& oldest_first() const noexcept { return order_; }
  std::size_t size() const noexcept { return order_.size(); }

private:
  std::list<std::string> order_;
  std::unordered_map<std::string, std::list<std::string>::iterator> places_;
};

} // namespace millrace::storage
