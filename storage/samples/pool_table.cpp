// Room for sets: regions, quotas and names, and the sets that make room for others.
#include <millrace/core/assert.hpp>
#include <millrace/storage/samples/pool_table.hpp>

#include <algorithm>
#include <utility>

namespace millrace::storage::samples::detail {

pool_table::pool_table(
  std::vector<pool_region> of, std::uint64_t each_bytes, const pool_limits& bounds)
  : regions(std::move(of)), region_bytes(each_bytes), limits(bounds) {
  free.reserve(regions.size());
  for (auto i = regions.size(); i-- > 0;) {
    MILLRACE_ASSERT(regions[i].bytes.size() == region_bytes && regions[i].generation);
    free.push_back(static_cast<std::uint32_t>(i));
  }
}

namespace {

using named_set = std::map<std::string, pool_entry>::iterator;

std::uint64_t owned_regions(const pool_table& table, const std::string& owner) {
  auto found = table.owned.find(owner);
  return found == table.owned.end() ? 0 : found->second;
}

// What a set lacks.
struct shortage {
  std::uint64_t regions = 0;
  std::uint64_t of_quota = 0; // regions that its owner has too many
  bool name = false;

  bool any() const noexcept { return regions > 0 || of_quota > 0 || name; }
};

std::uint64_t above(std::uint64_t wanted, std::uint64_t there) {
  return wanted > there ? wanted - there : 0;
}

// Sets that have a name, and appends to them: each has a description.
std::uint64_t described_count(const pool_table& table) {
  auto out = table.names.size();
  for (auto& [name, entry] : table.names)
    out += entry.appended.size();
  return out;
}

shortage lacking(const pool_table& table, const set_info& set) {
  auto wanted = region_count(set);
  auto quota = table.limits.quota_bytes / table.region_bytes;
  return {
    above(wanted, table.free.size()),
    table.limits.quota_bytes == 0 ? 0 : above(owned_regions(table, set.owner) + wanted, quota),
    described_count(table) >= table.limits.sets_max};
}

// Returns the regions that an idle set gives back.
std::uint64_t regions_of(const pool_entry& entry) {
  auto out = entry.set->regions().size();
  for (auto& [number, more] : entry.appended)
    out += more->regions().size();
  return out;
}

bool is_idle(const pool_entry& entry) {
  return entry.set.use_count() == 1 && entry.appending.is_nil() &&
    std::ranges::all_of(
           entry.appended, [](auto& numbered) { return numbered.second.use_count() == 1; });
}

// Returns the sets that nobody has, the least recently used ones first, but for that of a name.
std::vector<named_set> idle_sets(pool_table& table, const std::string& but) {
  std::vector<named_set> out;
  for (auto i = table.names.begin(); i != table.names.end(); ++i)
    if (i->first != but && is_idle(i->second))
      out.push_back(i);
  std::ranges::sort(out, {}, [](auto& named) { return named->second.used_at; });
  return out;
}

} // namespace

// Those of the owner go first where the quota lacks, since others would not help.
std::vector<stored_ptr> evict_for(pool_table& table, const set_info& set) {
  auto lacks = lacking(table, set);
  std::vector<named_set> chosen;
  std::vector<stored_ptr> out;
  auto idle = idle_sets(table, set.name);
  auto choose = [&](bool for_quota) {
    for (auto& one : idle) {
      if (one == table.names.end() || !(for_quota ? lacks.of_quota > 0 : lacks.any()))
        continue;
      if (for_quota && one->second.owner != set.owner)
        continue;
      auto regions = regions_of(one->second);
      lacks.regions = above(lacks.regions, regions);
      if (one->second.owner == set.owner)
        lacks.of_quota = above(lacks.of_quota, regions);
      lacks.name = false;
      chosen.push_back(std::exchange(one, table.names.end()));
    }
  };
  choose(true);
  choose(false);
  if (lacks.any())
    return out;
  std::size_t count = 0;
  for (auto& one : chosen)
    count += 1 + one->second.appended.size();
  out.reserve(count); // nothing throws once sets were taken out: they end after the lock
  for (auto& one : chosen) {
    out.push_back(std::move(one->second.set));
    for (auto& [number, more] : one->second.appended)
      out.push_back(std::move(more));
    table.names.erase(one);
    ++table.evictions;
  }
  return out;
}

std::vector<set_region> take_regions(pool_table& table, const set_info& set) {
  std::vector<set_region> taken;
  taken.reserve(region_count(set));
  table.owned[set.owner] += region_count(set);
  for (std::uint64_t at = 0; at < set.size_bytes; at += table.region_bytes) {
    auto index = table.free.back();
    table.free.pop_back();
    auto& region = table.regions[index];
    auto length = std::min(table.region_bytes, set.size_bytes - at);
    // Before anybody can write. So nobody sees bytes of this set and then the former generation.
    auto generation = region.generation->fetch_add(1) + 1;
    taken.push_back({index, region.bytes.first(length), generation});
  }
  return taken;
}

void give_back(
  pool_table& table, const std::string& owner, const std::vector<set_region>& regions) {
  for (auto& region : regions)
    table.free.push_back(region.index);
  auto found = table.owned.find(owner);
  if (found != table.owned.end() && (found->second -= regions.size()) == 0)
    table.owned.erase(found);
}

status check_room(const pool_table& table, const set_info& set) {
  auto lacks = lacking(table, set);
  if (lacks.name)
    return {
      errc::no_space,
      "working set {}: there are {} sets and appends, as many as there may be; unload one, or "
      "raise "
      "data.sets_max",
      set.name, described_count(table)};
  if (lacks.of_quota > 0)
    return {
      errc::no_space,
      "working set {}: asked for {} bytes, and {} has {} of {} already; unload a set, or raise "
      "data.quota",
      set.name,
      region_count(set) * table.region_bytes,
      set.owner,
      owned_regions(table, set.owner) * table.region_bytes,
      table.limits.quota_bytes};
  if (lacks.regions > 0)
    return {
      errc::no_space,
      "working set {}: asked for {} bytes, free are {} of {}; unload a set, or raise data.capacity",
      set.name,
      region_count(set) * table.region_bytes,
      table.free_bytes(),
      table.capacity_bytes()};
  return {};
}

} // namespace millrace::storage::samples::detail
