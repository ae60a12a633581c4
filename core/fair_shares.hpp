// Shares of bounded places: connections, operations, staging memory. Used wherever untrusted peers
// take places and may not give them back.
#pragma once

#include <millrace/core/ids.hpp>
#include <millrace/core/status.hpp>

#include <algorithm>
#include <compare>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace millrace {

/// A process that takes places, and the user or host that it belongs to.
struct party {
  std::string owner;       // "user 1000", or the address of a host
  peer_id process;         // nil: this process itself
  bool privileged = false; // it may take the places that are kept

  friend auto operator<=>(const party&, const party&) = default;
};

/// Counts who holds how many of a number of places.
///
/// *Problem*: places are few, and a process that is stopped or hostile never gives its places back.
/// One that may take all of them stops everyone else. But fixed shares would leave places unused.
///
/// *Rule*: a process may hold as many places as are free, and an owner seven times as many. So one
/// process alone gets half of the places, two get a third each, and some always remain for the
/// next. A party that holds none gets its first places whenever they are free. This process itself
/// is bound by the number of places only, and so is an owner that is privileged.
///
/// Threads: one at a time.
class fair_shares {
public:
  /// `kept`: the last places, which only privileged parties may take.
  explicit fair_shares(std::uint64_t places, std::uint64_t kept = 0)
    : places_(places), kept_(std::min(kept, places)) {}

  bool fits(const party& who, std::uint64_t count = 1) const;
  /// Takes places that fit. Returns false, and takes nothing, if they do not. Throws only at the
  /// first places of a party, and then takes nothing; to take none throws as well.
  bool take(const party& who, std::uint64_t count = 1);
  void give_back(const party& who, std::uint64_t count = 1);

  std::uint64_t places() const noexcept { return places_; }
  std::uint64_t kept() const noexcept { return kept_; }
  std::uint64_t taken() const noexcept { return taken_; }
  std::uint64_t taken_by(const party& who) const;

private:
  static constexpr std::uint64_t owner_factor = 7;

  std::uint64_t places_;
  std::uint64_t kept_;
  std::uint64_t taken_ = 0;
  std::map<peer_id, std::uint64_t> by_process_;
  std::map<std::string, std::uint64_t> by_owner_;
};

/// Returns how many of so many places are kept for the privileged: a sixteenth, and at least one of
/// several.
constexpr std::uint64_t places_kept(std::uint64_t places) {
  return places > 1 ? std::max<std::uint64_t>(places / 16, 1) : 0;
}

/// Takes a place that returns when the last copy of the result goes, on the same thread as all
/// other uses. Null: it does not fit.
std::shared_ptr<void> lend_place(std::shared_ptr<fair_shares> shares, const party& who);

/// Places that are taken on one thread and returned on another. Where none are kept for the
/// privileged, they have shares as others do.
/// Threads: any. Made by `make_shared` only.
class lent_places : public std::enable_shared_from_this<lent_places> {
public:
  /// `what`: the places and the key that bounds them, for errors.
  lent_places(std::uint64_t places, std::string what, std::uint64_t kept = 0)
    : shares_(places, kept), what_(std::move(what)) {}

  /// Lends places that return when the last copy of the result goes.
  /// Errors:  `busy` when the party has its share.
  result<std::shared_ptr<void>> lend(party who, std::uint64_t count = 1);
  /// Takes places, which `give_back` returns.
  /// Errors:  as `lend`.
  status take(const party& who, std::uint64_t count = 1);
  void give_back(const party& who, std::uint64_t count = 1);
  std::uint64_t taken() const;

private:
  mutable std::mutex mutex_;
  fair_shares shares_;
  const std::string what_;
};

/// Holds items that wait for places. Each process has a queue of its own, and the processes take
/// turns.
/// Threads: one at a time.
template <class Item>
class fair_queue {
public:
  void push(party who, Item item) {
    auto known = std::find_if(
      turns_.begin(), turns_.end(), [&](auto& t) { return t.who.process == who.process; });
    std::list<turn> added; // joins last, so that no turn is empty if this throws
    if (known == turns_.end())
      known = added.insert(added.end(), turn{std::move(who), {}});
    known->items.push_back(std::move(item));
    turns_.splice(turns_.end(), added);
    ++size_;
  }

  /// Removes the next item for which `may(party, item)` holds: the first one of a process. Throws
  /// only what `may` throws.
  template <class May>
  std::optional<Item> next(May may) {
    for (auto turn = turns_.begin(); turn != turns_.end(); ++turn) {
      if (!may(turn->who, turn->items.front()))
        continue;
      std::optional<Item> out{std::move(turn->items.front())};
      turn->items.pop_front();
      --size_;
      if (turn->items.empty())
        turns_.erase(turn);
      else
        turns_.splice(turns_.end(), turns_, turn);
      return out;
    }
    return {};
  }

  /// Removes the first item for which `is(item)` holds.
  template <class Is>
  std::optional<Item> remove(Is is) {
    for (auto turn = turns_.begin(); turn != turns_.end(); ++turn) {
      auto found = std::find_if(turn->items.begin(), turn->items.end(), is);
      if (found == turn->items.end())
        continue;
      std::optional<Item> out{std::move(*found)};
      turn->items.erase(found);
      --size_;
      if (turn->items.empty())
        turns_.erase(turn);
      return out;
    }
    return {};
  }

  template <class F>
  void for_each(F f) const {
    for (auto& turn : turns_)
      for (auto& item : turn.items)
        f(item);
  }

  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }

private:
  struct turn {
    party who;
    std::deque<Item> items;
  };

  std::list<turn> turns_; // the next one first; none is empty
  std::size_t size_ = 0;
};

} // namespace millrace
