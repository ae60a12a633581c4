// The order in which models were last used. Kept by buckets that evict.
#pragma once

#include <millrace/storage/bucket.hpp>

#include <list>
#include <string>
#include <unordered_map>
#include <unordered_set>

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

  /// Tells that a version was published under a name. Marks are counted only, and of a provider's
  /// own records nothing is kept.
  void put(const std::string& name, bool erased) {
    if (is_model(name, erased)) {
      marks_.erase(name);
      return touch(name);
    }
    forget(name);
    if (erased)
      marks_.insert(name);
  }

  void forget(const std::string& name) {
    marks_.erase(name);
    auto place = places_.find(name);
    if (place == places_.end())
      return;
    order_.erase(place->second);
    places_.erase(place);
  }

  const std::list<std::string>& oldest_first() const noexcept { return order_; }
  std::size_t size() const noexcept { return order_.size(); }
  std::size_t marks() const noexcept { return marks_.size(); }

private:
  std::list<std::string> order_;
  std::unordered_map<std::string, std::list<std::string>::iterator> places_;
  std::unordered_set<std::string> marks_; // the marks of erased models
};

} // namespace millrace::storage
