// Where the names of a group rest: the group's views, and what follows from them alone. Used by
// providers, which keep the views, and by clients, which ask by them.
#pragma once

#include <millrace/core/inspect.hpp>
#include <millrace/core/status.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

/// A provider of a group, as a view names it.
struct group_member {
  std::string id; // names are placed by it; a provider keeps it when it is renamed
  std::string name;
  std::string node;
  std::vector<std::string> addresses; // where the node is reached
  std::uint32_t weight = 1;
  bool forgets = false; // it may lose models without being asked: it evicts, or is not durable

  friend auto operator<=>(const group_member&, const group_member&) = default;
};
MILLRACE_INSPECT(group_member, x.id, x.name, x.node, x.addresses, x.weight, x.forgets)

/// The providers of a group at one time. Without members: it is not known where names were stored.
struct group_view {
  std::uint64_t number = 0;          // a later view has a larger one
  std::vector<group_member> members; // sorted by id

  friend auto operator<=>(const group_view&, const group_view&) = default;
};
MILLRACE_INSPECT(group_view, x.number, x.members)

/// All views of a group that a model may have been stored under, oldest first. Views that were made
/// apart may have the same number, but not that of the newest one. One without members stands for
/// itself and all before it.
struct group_history {
  std::string group;
  std::vector<group_view> views;
  std::uint64_t settled = 0; // the number of a view that all providers of the history know

  /// Returns the number of the newest view; 0 if there is none.
  std::uint64_t number() const noexcept { return views.empty() ? 0 : views.back().number; }

  friend bool operator==(const group_history&, const group_history&) = default;
};
MILLRACE_INSPECT(group_history, x.group, x.views, x.settled)

inline constexpr std::size_t group_views_max = 256;
inline constexpr std::size_t group_members_max = 4096;
inline constexpr std::size_t group_entries_max = 16'384; // members of all views together
inline constexpr std::size_t member_text_max = 256;      // bytes of each name, id and address
inline constexpr std::size_t member_addresses_max = 16;
inline constexpr std::uint32_t member_weight_max = 1000;
/// A peer cannot use up the numbers: each change of a group's providers takes one.
inline constexpr std::uint64_t view_number_max = std::uint64_t{1} << 48;

/// Returns the number of a view that follows a history. It is at least the wall clock's seconds. So
/// views that were made independently of each other have numbers in the order of their making.
std::uint64_t next_view_number(const group_history& history);

/// Returns the score of a provider for a model: the provider with the largest one gets it. A
/// provider of weight w wins in proportion to its weight.
double placement_score(std::string_view model, std::string_view id, std::uint32_t weight);

/// Returns where the candidate stands that has the best score of those that take part; the end of
/// the list if none does. One that is alone needs no score.
template <class Candidates, class TakesPart, class Score>
auto best_scored(const Candidates& all, TakesPart takes_part, Score score) {
  auto best = all.end();
  std::optional<double> best_score;
  for (auto at = all.begin(); at != all.end(); ++at) {
    if (!takes_part(*at))
      continue;
    if (best == all.end()) {
      best = at;
      continue;
    }
    if (!best_score)
      best_score = score(*best);
    if (auto s = score(*at); s > *best_score)
      best = at, best_score = s;
  }
  return best;
}

/// Returns the member that a view places a name at; null for a view without members.
const group_member* home_of(std::string_view model, const group_view& view);

/// Returns every member of a history once, as its newest view describes it.
std::vector<group_member> members_of(const group_history& history);

/// Returns true if no view of number `from` or later placed the name at a provider other than `id`.
bool rests_only_at(
  const group_history& history, std::string_view model, std::string_view id, std::uint64_t from);

/// Returns why the model's copy of view `stored_in` at provider `id` may be older than one that was
/// stored later; empty if it is not. `gone`: the ids of providers that cannot be asked any more.
std::string superseded_by(
  const group_history& history, std::string_view model, std::string_view id,
  std::uint64_t stored_in, const std::vector<std::string>& gone);

/// Replaces the oldest views by one without members, if there are more views than a history may
/// have.
void bound(group_history& history);

/// Checks views that came from a peer.
/// Errors:  `invalid_argument`.
[[nodiscard]] status validate(const group_history& history);

} // namespace millrace
