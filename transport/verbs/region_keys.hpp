// The keys that one peer has granted, and the questions for more. Used by `asking_side`.
#pragma once

#include <millrace/transport/verbs/running_transfer.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

namespace millrace::transport::verbs {

/// Identifies a set of keys. A handle with another key names another region.
struct region_name {
  std::uint64_t region = 0;
  region_key key;
  direction dir = direction::read;

  static region_name of(const running_transfer& t) {
    return {t.what.remote.region, t.what.remote.key, t.what.dir};
  }
  friend auto operator<=>(const region_name&, const region_name&) = default;
};

/// Keeps the books only: it takes no locks and sends no messages.
class region_keys {
public:
  using keys_ptr = std::shared_ptr<const key_set>;

  /// Returns null if there are no keys.
  keys_ptr find(const region_name& name);
  /// Returns true if there are keys, or an answer is awaited.
  bool contains(const region_name& name) const { return known_.contains(name); }
  /// Returns the number of a new question to the peer; nothing while a question for the region is
  /// under way.
  std::optional<std::uint64_t> ask(const region_name& name);
  /// Returns the region of an answered question; nothing if no transfer waits for the answer any
  /// more.
  std::optional<region_name> answered(std::uint64_t number);
  void add(const region_name& name, keys_ptr keys);

  /// Stops waiting for the answer. Returns false if none is awaited.
  bool give_up(const region_name& name);
  /// Drops the keys of a region, unless an answer is awaited.
  void forget(const region_name& name);
  /// Notes that the peer has withdrawn the region.
  void withdrawn(std::uint64_t region);
  /// Drops all keys; answers are still awaited. Returns true if there was anything.
  bool forget_all();
  /// Drops the least recently used keys beyond a number. Transfers that use them keep them. Returns
  /// true if any were dropped.
  bool trim(std::size_t entries_max);
  void clear();

private:
  struct entry {
    keys_ptr keys;           // null while the first answer is awaited
    std::uint64_t asked = 0; // number of the question under way; 0: none
    std::uint64_t used_at = 0;
  };

  std::map<region_name, entry> known_;
  std::map<std::uint64_t, region_name> questions_;
  std::uint64_t last_question_ = 0;
  std::uint64_t clock_ = 0;
};

} // namespace millrace::transport::verbs
