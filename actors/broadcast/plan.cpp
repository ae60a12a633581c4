// Chooses the leaders, and links them.
#include <millrace/actors/broadcast/plan.hpp>
#include <millrace/core/assert.hpp>

#include <algorithm>
#include <unordered_map>

namespace millrace::actors {

namespace {

status check(std::size_t members, std::uint32_t root, unsigned k) {
  if (members == 0 || members > broadcast_members_max)
    return {
      errc::invalid_argument, "a broadcast to {} members: a group has 1 to {}", members,
      broadcast_members_max};
  if (root >= members)
    return {
      errc::invalid_argument, "a broadcast from member {}: the last of {} members has number {}",
      root, members, members - 1};
  if (k < 2)
    return {errc::invalid_argument, "a k-nomial tree with k = {}: k is 2 at least", k};
  return {};
}

// Returns the leader of each host, the root first.
std::vector<std::uint32_t> choose_leaders(
  std::span<const std::uint32_t> host_of, std::uint32_t root) {
  std::unordered_map<std::uint32_t, std::size_t> known;
  std::vector<std::uint32_t> leaders;
  for (std::uint32_t member = 0; member < host_of.size(); ++member)
    if (known.emplace(host_of[member], leaders.size()).second)
      leaders.push_back(member);
  auto of_root = static_cast<std::ptrdiff_t>(known.at(host_of[root]));
  leaders[static_cast<std::size_t>(of_root)] = root;
  std::rotate(leaders.begin(), leaders.begin() + of_root, leaders.end());
  return leaders;
}

void link(broadcast_plan& plan, std::size_t from, std::size_t to) {
  plan.roles[plan.leaders[from]].sends_to.push_back(plan.leaders[to]);
  plan.roles[plan.leaders[to]].receives_from = plan.leaders[from];
}

void link_ring(broadcast_plan& plan) {
  for (std::size_t i = 1; i < plan.leaders.size(); ++i)
    link(plan, i - 1, i);
}

// The parent of a leader has the same digits to the base k, but 0 in place of the last one that is
// not 0. Children of high levels have the largest subtrees, so they come first.
void link_tree(broadcast_plan& plan, std::size_t k) {
  auto count = plan.leaders.size();
  std::size_t level = 1;
  while (level < count)
    level *= k;
  for (; level >= 1; level /= k)
    for (std::size_t parent = 0; parent < count; parent += level * k)
      for (auto digit = k - 1; digit >= 1; --digit)
        if (auto child = parent + digit * level; child < count)
          link(plan, parent, child);
}

void link_multicast(broadcast_plan& plan) {
  for (std::size_t i = 1; i < plan.leaders.size(); ++i)
    link(plan, 0, i);
}

void link_readers(broadcast_plan& plan) {
  std::unordered_map<std::uint32_t, std::uint32_t> leader_of;
  for (auto leader : plan.leaders)
    leader_of.emplace(plan.roles[leader].host, leader);
  for (std::uint32_t member = 0; member < plan.roles.size(); ++member) {
    auto leader = leader_of.at(plan.roles[member].host);
    if (member == leader)
      continue;
    plan.roles[member].receives_from = leader;
    plan.roles[leader].read_by.push_back(member);
  }
}

} // namespace

std::string_view to_string(broadcast_algorithm algorithm) noexcept {
  switch (algorithm) {
  case broadcast_algorithm::ring:
    return "ring";
  case broadcast_algorithm::knomial:
    return "k-nomial";
  case broadcast_algorithm::multicast:
    return "multicast";
  }
  return "unknown";
}

result<broadcast_plan> plan_broadcast(
  std::span<const std::uint32_t> host_of, std::uint32_t root, broadcast_algorithm algorithm,
  unsigned k) {
  if (auto bad = check(host_of.size(), root, k); !bad.ok())
    return fail(bad);
  broadcast_plan plan{algorithm, root, choose_leaders(host_of, root), {}};
  plan.roles.reserve(host_of.size());
  for (auto host : host_of)
    plan.roles.push_back({host, {}, {}, {}});
  switch (algorithm) {
  case broadcast_algorithm::ring:
    link_ring(plan);
    break;
  case broadcast_algorithm::knomial:
    link_tree(plan, std::min<std::size_t>(k, plan.leaders.size() + 1));
    break;
  case broadcast_algorithm::multicast:
    link_multicast(plan);
    break;
  }
  link_readers(plan);
  return plan;
}

std::vector<std::uint32_t> deal_members(std::uint32_t members, std::uint32_t hosts) {
  MILLRACE_ASSERT(hosts > 0 && members >= hosts);
  std::vector<std::uint32_t> host_of;
  host_of.reserve(members);
  for (std::uint32_t host = 0; host < hosts; ++host)
    host_of.insert(host_of.end(), members / hosts + (host < members % hosts ? 1 : 0), host);
  return host_of;
}

} // namespace millrace::actors
