// Cuts, joins and pairs; needs no device.
// Called by `peer_link` and its sides on the completion thread.
#include <millrace/core/assert.hpp>
#include <millrace/transport/verbs/transfer_plan.hpp>

#include <algorithm>
#include <bit>
#include <limits>

namespace millrace::transport::verbs {

std::vector<local_run> arrange(std::vector<local_run> runs) {
  auto before = [](auto& a, auto& b) { return a.remote_offset < b.remote_offset; };
  if (!std::is_sorted(runs.begin(), runs.end(), before))
    std::stable_sort(runs.begin(), runs.end(), before);
  std::size_t kept = 0;
  for (auto& p : runs) {
    if (p.length == 0)
      continue;
    auto* last = kept > 0 ? &runs[kept - 1] : nullptr;
    if (
      last && last->memory == p.memory && last->data + last->length == p.data &&
      last->remote_offset + last->length == p.remote_offset)
      last->length += p.length;
    else
      runs[kept++] = p;
  }
  runs.resize(kept);
  return runs;
}

request request_cutter::cut(
  const request_limits& limits, std::span<const std::uint64_t> range_ends) {
  MILLRACE_ASSERT(!at_end());
  request out;
  out.remote_offset = runs_[next_].remote_offset + done_;
  auto end = std::upper_bound(range_ends.begin(), range_ends.end(), out.remote_offset);
  MILLRACE_ASSERT(end != range_ends.end());
  auto room = std::min(limits.bytes_max, *end - out.remote_offset);
  while (!at_end() && out.local.size() < limits.runs_max && room > 0) {
    auto& p = runs_[next_];
    if (p.remote_offset + done_ != out.remote_offset + out.length)
      break;
    auto length = std::min(room, p.length - done_);
    out.local.push_back({p.remote_offset + done_, p.data + done_, length, p.memory});
    out.length += length;
    room -= length;
    done_ += length;
    if (done_ == p.length) {
      ++next_;
      done_ = 0;
    }
  }
  return out;
}

namespace {

int common_bits(const gid_bytes& a, const gid_bytes& b) {
  int bits = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    auto differ = static_cast<std::uint8_t>(a[i] ^ b[i]);
    bits += std::countl_zero(differ);
    if (differ != 0)
      break;
  }
  return bits;
}

bool is_ipv4(const gid_bytes& gid) {
  return common_bits(gid, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff}) >= 96;
}

bool alike(const rail_info& a, const rail_info& b) {
  return a.infiniband == b.infiniband && (a.infiniband || is_ipv4(a.gid) == is_ipv4(b.gid));
}

// Returns for each rail of `longer` a place in `shorter`, or the size of `shorter` if none fits.
std::vector<std::size_t> partners(
  std::span<const rail_info> longer, std::span<const rail_info> shorter) {
  std::vector<std::size_t> out;
  std::vector<int> used(shorter.size());
  for (auto& rail : longer) {
    auto best = shorter.size();
    for (std::size_t i = 0; i < shorter.size(); ++i) {
      if (!alike(rail, shorter[i]))
        continue;
      auto better = best == shorter.size() || used[i] < used[best] ||
        (used[i] == used[best] &&
         common_bits(rail.gid, shorter[i].gid) > common_bits(rail.gid, shorter[best].gid));
      if (better)
        best = i;
    }
    if (best < shorter.size())
      ++used[best];
    out.push_back(best);
  }
  return out;
}

} // namespace

std::vector<rail_pairing> pair_rails(
  std::span<const rail_info> first, std::span<const rail_info> second) {
  std::vector<rail_pairing> out;
  auto swapped = second.size() > first.size();
  auto longer = swapped ? second : first;
  auto shorter = swapped ? first : second;
  auto found = partners(longer, shorter);
  for (std::size_t i = 0; i < found.size() && out.size() < rails_max; ++i) {
    if (found[i] == shorter.size())
      continue;
    auto a = static_cast<std::uint32_t>(i), b = static_cast<std::uint32_t>(found[i]);
    out.push_back(swapped ? rail_pairing{b, a} : rail_pairing{a, b});
  }
  return out;
}

std::optional<std::uint32_t> choose_rail(std::span<const rail_distance> rails, std::uint32_t turn) {
  std::vector<std::uint32_t> nearest;
  auto shortest = std::numeric_limits<int>::max();
  for (auto& r : rails) {
    auto way = static_cast<int>(r.here) + static_cast<int>(r.there);
    if (way < shortest)
      nearest.clear();
    shortest = std::min(shortest, way);
    if (way == shortest)
      nearest.push_back(r.pair);
  }
  return nearest.empty() ? std::nullopt : std::optional{nearest[turn % nearest.size()]};
}

std::vector<std::uint32_t> depths(std::span<const std::uint64_t> rates, std::uint32_t depth_max) {
  std::uint64_t fastest = 0;
  for (auto r : rates)
    fastest = std::max(fastest, r);
  std::vector<std::uint32_t> out;
  for (auto r : rates) {
    auto share = r == 0 || fastest == 0
      ? depth_max
      : static_cast<std::uint32_t>(
          static_cast<double>(depth_max) * static_cast<double>(r) / static_cast<double>(fastest));
    out.push_back(std::clamp(share, std::min(2u, depth_max), depth_max));
  }
  return out;
}

} // namespace millrace::transport::verbs
