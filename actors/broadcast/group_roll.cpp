// The rules of epochs.
#include <millrace/actors/broadcast/group_roll.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace millrace::actors {

namespace {

constexpr std::size_t ranks_named_max = 16;

// "rank 3", "ranks 1, 3 and 20 others"
std::string text_of(const std::vector<std::uint32_t>& ranks) {
  auto named = std::min(ranks.size(), ranks_named_max);
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < named; ++i)
    out += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  if (named < ranks.size())
    out += fmt::format(" and {} others", ranks.size() - named);
  return out;
}

} // namespace

group_roll::by_rank::const_iterator group_roll::find(const by_rank& among, std::uint64_t lease) {
  return std::ranges::find_if(among, [&](auto& one) { return one.second.lease == lease; });
}

status group_roll::join(const enrolled_member& one, std::uint32_t size) {
  if (size != size_)
    return {
      errc::invalid_argument,
      "group {} has {} members, and rank {} gave {}: all give the same",
      name_,
      size_,
      one.rank,
      size};
  if (one.rank >= size_)
    return {
      errc::invalid_argument, "rank {} of group {}: its {} members have ranks from 0 on", one.rank,
      name_, size_};
  for (auto* among : {&members_, &waiting_})
    if (auto taken = among->find(one.rank); taken != among->end())
      return {
        errc::already_exists, "rank {} of group {} is {}; end it first, or choose another name",
        one.rank, name_, taken->second.who};
  waiting_.emplace(one.rank, one);
  return {};
}

status group_roll::renew(std::uint64_t lease, std::uint64_t epoch) {
  auto member = find(members_, lease);
  if (member == members_.end())
    return {errc::not_found, "group {} has no such member any more; join it again", name_};
  if (epoch != epoch_)
    return {
      errc::invalid_argument,
      "group {} is in epoch {}, and rank {} asks to go on from {}",
      name_,
      epoch_,
      member->first,
      epoch};
  if (!waiting_.insert(*member).second)
    return {
      errc::busy, "rank {} of group {} waits for the next epoch already", member->first, name_};
  return {};
}

void group_roll::withdraw(std::uint64_t lease) {
  if (auto at = find(waiting_, lease); at != waiting_.end())
    waiting_.erase(at);
}

void group_roll::lose(std::uint64_t lease, const std::string& why, errc code) {
  withdraw(lease);
  auto at = find(members_, lease);
  if (at == members_.end())
    return;
  if (over_.ok())
    over_ = {code, "rank {} of group {} ({}) has gone: {}", at->first, name_, at->second.who, why};
  members_.erase(at);
}

bool group_roll::may_begin() const {
  if (!was_begun())
    return waiting_.size() == size_;
  return std::ranges::all_of(members_, [&](auto& one) { return waiting_.contains(one.first); });
}

std::vector<enrolled_member> group_roll::waiting() const {
  std::vector<enrolled_member> out;
  for (auto& [rank, one] : waiting_)
    out.push_back(one);
  return out;
}

void group_roll::begin() {
  members_ = std::exchange(waiting_, {});
  over_ = {};
  ++epoch_;
}

std::string group_roll::missing() const {
  if (may_begin())
    return "all have come, and the memory for the epoch is still being made";
  std::vector<std::uint32_t> ranks;
  if (was_begun()) {
    for (auto& [rank, one] : members_)
      if (!waiting_.contains(rank))
        ranks.push_back(rank);
    return fmt::format(
      "{} {} not asked to go on with epoch {}", text_of(ranks), ranks.size() == 1 ? "has" : "have",
      epoch_ + 1);
  }
  for (std::uint32_t rank = 0; rank < size_; ++rank)
    if (!waiting_.contains(rank))
      ranks.push_back(rank);
  return fmt::format(
    "{} of {} {} not joined", text_of(ranks), size_, ranks.size() == 1 ? "has" : "have");
}

} // namespace millrace::actors
