// Ranges that nobody has claimed, and those of each client.
#include <millrace/actors/loader/fill_shares.hpp>

#include <algorithm>
#include <iterator>

namespace millrace::actors {

fill_shares::fill_shares(std::uint64_t blocks) : blocks_(blocks), unclaimed_(blocks) {
  if (blocks > 0)
    free_.emplace(0, blocks);
}

// Half of what is left is divided among the clients, so that nobody has much when it ends.
block_range fill_shares::claim(std::uint64_t client, std::uint64_t below, std::uint64_t wanted) {
  auto& own = claims_[client];
  if (wanted == 0 || own.claims.size() >= claims_max || !has_before(below))
    return {};
  auto [first, end] = *free_.begin();
  auto share = std::max<std::uint64_t>(unclaimed_ / (2 * claims_.size()), 1);
  auto count = std::min({wanted, share, std::min(end, below) - first});
  free_.erase(free_.begin());
  if (first + count < end)
    free_.emplace(first + count, end);
  unclaimed_ -= count;
  own.blocks += count;
  own.claims.emplace(first, first + count);
  return {first, count};
}

bool fill_shares::finish(std::uint64_t client, const block_range& blocks) {
  auto own = claims_.find(client);
  if (own == claims_.end())
    return false;
  auto& claims = own->second.claims;
  auto found = claims.find(blocks.first);
  if (found == claims.end() || found->second - found->first != blocks.count)
    return false;
  claims.erase(found);
  own->second.blocks -= blocks.count;
  written_ += blocks.count;
  return true;
}

void fill_shares::leave(std::uint64_t client) {
  auto own = claims_.extract(client);
  if (own.empty())
    return;
  for (auto& [first, end] : own.mapped().claims)
    put_back(first, end);
}

void fill_shares::put_back(std::uint64_t first, std::uint64_t end) {
  unclaimed_ += end - first;
  auto next = free_.lower_bound(first);
  if (next != free_.end() && next->first == end) {
    end = next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin())
    if (auto before = std::prev(next); before->second == first) {
      before->second = end;
      return;
    }
  free_.emplace(first, end);
}

bool fill_shares::has_before(std::uint64_t below) const noexcept {
  return !free_.empty() && free_.begin()->first < below;
}

std::uint64_t fill_shares::claimed(std::uint64_t client) const {
  auto own = claims_.find(client);
  return own == claims_.end() ? 0 : own->second.blocks;
}

std::uint64_t fill_shares::elsewhere(std::uint64_t client) const {
  return blocks_ - unclaimed_ - written_ - claimed(client);
}

} // namespace millrace::actors
