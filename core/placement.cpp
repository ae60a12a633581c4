// Weighted rendezvous hashing, and the rules of views.
#include <millrace/core/clock.hpp>
#include <millrace/core/digest.hpp>
#include <millrace/core/placement.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace millrace {

namespace {

bool has_member(const group_view& view, std::string_view id) {
  return std::ranges::any_of(view.members, [&](auto& m) { return m.id == id; });
}

bool is_bounded(const group_member& m) {
  auto fits = [](const std::string& text) { return text.size() <= member_text_max; };
  return !m.id.empty() && !m.name.empty() && m.weight > 0 && m.weight <= member_weight_max &&
    fits(m.id) && fits(m.name) && fits(m.node) && m.addresses.size() <= member_addresses_max &&
    std::ranges::all_of(m.addresses, [&](auto& a) { return !a.empty() && fits(a); });
}

} // namespace

std::uint64_t next_view_number(const group_history& history) {
  return std::max(history.number() + 1, wall_clock_ns() / 1'000'000'000);
}

double placement_score(std::string_view model, std::string_view id, std::uint32_t weight) {
  std::string key{id};
  key += '\0';
  key += model;
  auto u = (static_cast<double>(digest(key.data(), key.size()) >> 11) + 0.5) * 0x1p-53;
  return -static_cast<double>(weight) / std::log(u);
}

const group_member* home_of(std::string_view model, const group_view& view) {
  auto best = best_scored(
    view.members, [](auto&) { return true; },
    [&](auto& m) { return placement_score(model, m.id, m.weight); });
  return best == view.members.end() ? nullptr : &*best;
}

std::vector<group_member> members_of(const group_history& history) {
  std::map<std::string_view, const group_member*> newest;
  for (auto& view : history.views)
    for (auto& m : view.members)
      newest[m.id] = &m;
  std::vector<group_member> all;
  all.reserve(newest.size());
  for (auto& [id, m] : newest)
    all.push_back(*m);
  return all;
}

bool rests_only_at(
  const group_history& history, std::string_view model, std::string_view id, std::uint64_t from) {
  return std::ranges::all_of(history.views, [&](auto& view) {
    if (view.number < from)
      return true;
    auto* home = home_of(model, view);
    return home && home->id == id;
  });
}

std::string superseded_by(
  const group_history& history, std::string_view model, std::string_view id,
  std::uint64_t stored_in, const std::vector<std::string>& gone) {
  for (auto& view : history.views) {
    // A newer version removes the older copy first, unless the copy's provider is away.
    auto away = view.number > stored_in && !has_member(view, id);
    auto* home = away ? home_of(model, view) : nullptr;
    if (!home)
      continue;
    if (std::ranges::find(gone, home->id) != gone.end())
      return fmt::format(
        "provider {}, which was taken out of group {}, may have a newer version", home->name,
        history.group);
    if (home->forgets)
      return fmt::format(
        "the version that provider {} has dates from before it was taken out of group {}, and "
        "provider {} may have had a newer one",
        id, history.group, home->name);
  }
  return {};
}

void bound(group_history& history) {
  auto& views = history.views;
  std::size_t kept = 0, entries = 0;
  while (kept < std::min(views.size(), group_views_max) &&
         (entries += views[views.size() - 1 - kept].members.size()) <= group_entries_max)
    ++kept;
  if (kept == views.size())
    return;
  // One more view is dropped, since a view without members takes the place of all dropped ones.
  auto first_kept = views.end() - static_cast<std::ptrdiff_t>(std::min(kept, group_views_max - 1));
  auto last_dropped = std::prev(first_kept)->number;
  views.erase(views.begin(), first_kept);
  views.insert(views.begin(), {last_dropped, {}});
}

status validate(const group_history& history) {
  auto wrong = [&](std::string_view how) {
    return status{errc::invalid_argument, "the views of group {}: {}", history.group, how};
  };
  if (history.views.empty() || history.views.size() > group_views_max)
    return wrong(fmt::format("there must be 1 to {}", group_views_max));
  auto views = history.views.size();
  if (history.views.back().members.empty())
    return wrong("the newest one has no members");
  if (views > 1 && history.views[views - 2].number == history.number())
    return wrong("two have the largest number");
  if (history.number() > view_number_max || history.group.size() > member_text_max)
    return wrong("the number or the name is too large");
  if (history.group.empty() || (history.settled != 0 && history.settled != history.number()))
    return wrong("the group needs a name, and only its newest view can be settled");
  std::size_t entries = 0;
  for (auto& view : history.views)
    entries += view.members.size();
  if (entries > group_entries_max)
    return wrong(fmt::format("together they have more than {} members", group_entries_max));
  for (std::size_t i = 0; i < history.views.size(); ++i) {
    auto& members = history.views[i].members;
    if (i > 0 && history.views[i - 1] >= history.views[i])
      return wrong("they must be in their order");
    if (members.size() > group_members_max)
      return wrong(fmt::format("one has more than {} members", group_members_max));
    for (std::size_t m = 0; m < members.size(); ++m)
      if (!is_bounded(members[m]) || (m > 0 && members[m - 1].id >= members[m].id))
        return wrong(
          "members need an id, a name and a weight within their bounds, and must be in the order "
          "of their ids");
  }
  return {};
}

} // namespace millrace
