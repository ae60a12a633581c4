// Options by their type: those of rooms and kinds that the configuration does not know. Held by
// `settings`.
#pragma once

#include <millrace/config/keys.hpp>
#include <millrace/core/never_destroyed.hpp>

#include <any>
#include <map>
#include <typeindex>

namespace millrace::config {

/// Returns true if every key has the same value in both.
template <class Options>
bool same_values(const Options& a, const Options& b) {
  for (auto& row : keys_of<Options>().rows)
    if (row.get(a) != row.get(b))
      return false;
  return true;
}

/// Holds at most one struct of each type. Threads: as a standard container.
class option_set {
public:
  /// Returns the options that were set, or the defaults.
  template <class Options>
  const Options& of() const {
    const auto& defaults = never_destroyed([] { return Options{}; });
    auto found = held_.find(typeid(Options));
    return found == held_.end() ? defaults : *std::any_cast<Options>(&found->second.options);
  }

  template <class Options>
  Options& edit() {
    auto [entry, is_new] = held_.try_emplace(typeid(Options));
    if (is_new)
      entry->second = {Options{}, [](const option_set& a, const option_set& b) {
                         return same_values(a.of<Options>(), b.of<Options>());
                       }};
    return *std::any_cast<Options>(&entry->second.options);
  }

  friend bool operator==(const option_set& a, const option_set& b) {
    return a.agrees_with(b) && b.agrees_with(a);
  }

private:
  struct entry {
    std::any options;
    bool (*same)(const option_set&, const option_set&) = nullptr;
  };

  bool agrees_with(const option_set& other) const {
    for (auto& [type, held] : held_)
      if (!held.same(*this, other))
        return false;
    return true;
  }

  std::map<std::type_index, entry> held_;
};

} // namespace millrace::config
