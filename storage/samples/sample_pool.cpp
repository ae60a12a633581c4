// One lock guards the regions and the names. A set returns its regions by its destructor, which
// takes the lock, so the last pointer to one is never dropped under it.
#include <millrace/core/clock.hpp>
#include <millrace/storage/samples/pool_table.hpp>

#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

namespace millrace::storage::samples {

using detail::give_back;
using detail::pool_entry;
using detail::pool_table;
using detail::stored_ptr;

namespace {

// What was said when it was reserved may have changed.
set_info described(const pool_entry& entry) {
  auto out = entry.set->info();
  out.while_used = entry.while_used;
  if (out.division.index > 0)
    return out;
  out.appended.reserve(entry.appended.size());
  for (auto& [number, part] : entry.appended)
    out.appended.push_back(appended_of(part->info()));
  return out;
}

// Returns the part that this node has of an extension; the end for one that it does not have.
auto extension_of(const pool_entry& entry, const set_id& id) {
  return std::ranges::find_if(entry.appended, [&](auto& numbered) {
    auto& info = numbered.second->info();
    return !id.is_nil() && (id == info.id || id == info.division.whole);
  });
}

status being_filled(const std::string& name, const pool_entry& by) {
  return {errc::busy, "working set {} is being preloaded by {}", name, by.owner};
}

status another_life(const std::string& name) {
  return {errc::not_found, "working set {} was unloaded; another one has its name", name};
}

result<stored_ptr> existing(const pool_entry& found, const set_info& wanted) {
  if (!found.set)
    return fail(being_filled(wanted.name, found));
  auto& info = found.set->info();
  auto is_rest = info.division.index > 0 || wanted.division.index > 0;
  auto same_part =
    info.division.whole == wanted.division.whole && info.division.index == wanted.division.index;
  if (is_rest && !same_part)
    return fail(
      errc::already_exists,
      "working set {}: there is {} of it from another preload, by {}; unload it, or choose another "
      "name",
      wanted.name,
      is_divided(info) ? fmt::format("part {}", info.division.index) : std::string{"the whole"},
      info.owner);
  if (info.identity != wanted.identity)
    return fail(
      errc::already_exists,
      "working set {} has {} samples of other fields or in another number, preloaded by {}; unload "
      "it, or choose another name",
      wanted.name, info.samples, info.owner);
  if (info.source != wanted.source)
    return fail(
      errc::already_exists,
      "working set {} was preloaded by {} from other files, or from these before they changed; "
      "unload it, or choose another name",
      wanted.name, info.owner);
  if (info.left_out != wanted.left_out)
    return fail(
      errc::already_exists,
      "working set {} was preloaded by {} without other damaged files; unload it, or choose "
      "another "
      "name",
      wanted.name, info.owner);
  if (info.window_bytes != wanted.window_bytes)
    return fail(
      errc::already_exists,
      "working set {} has {}, preloaded by {}; ask for the same, unload it, or choose another name",
      wanted.name,
      is_window(info) ? fmt::format("a window of {} bytes", info.window_bytes)
                      : std::string{"all samples in memory"},
      info.owner);
  return found.set;
}

status check_target(const pool_entry* to, const set_info& wanted, const std::string& asker) {
  if (!to)
    return {
      errc::not_found, "no working set has the name {}; preload it before samples are appended",
      wanted.name};
  if (!to->set)
    return being_filled(wanted.name, *to);
  auto& info = to->set->info();
  if (to->whole_id() != wanted.extension.of || info.division.index != wanted.division.index)
    return {
      errc::not_found,
      "working set {} was unloaded, or this part of it; preload it before samples are appended",
      wanted.name};
  if (!may_change(to->owner, asker))
    return {
      errc::permission_denied, "working set {} belongs to {}, and {} may not append to it",
      wanted.name, to->owner, asker};
  if (info.division.nodes != wanted.division.nodes)
    return {
      errc::invalid_argument, "working set {}: samples are appended at the nodes that have it",
      wanted.name};
  return check_appends(info, wanted);
}

status being_appended(const pool_entry& to, const set_info& wanted) {
  return {errc::busy, "samples are being appended to working set {} for {}", wanted.name, to.owner};
}

status too_many_appends(const pool_entry& to, const set_info& wanted) {
  return {
    errc::no_space,
    "working set {} got samples by {} appends, as many as there may be; unload it, and preload all "
    "files",
    wanted.name, to.appended.size()};
}

// What is there of samples that are to be appended: by this append, or by the preload or another
// append of the same files. Null: nothing; then they are the next ones.
result<stored_ptr> at_home(const pool_entry& to, set_info& wanted) {
  std::vector<stored_ptr> all;
  all.reserve(to.appended.size() + 1);
  all.push_back(to.set);
  for (auto& [number, part] : to.appended)
    all.push_back(part);
  for (auto& part : all)
    if (auto& info = part->info(); have_same_samples(info, wanted))
      return part;
    else if (info.source == wanted.source)
      return fail(
        errc::already_exists,
        "working set {} has the samples of these files without other damaged files", wanted.name);
  if (!to.appending.is_nil())
    return fail(being_appended(to, wanted));
  if (to.appended.size() >= appends_max)
    return fail(too_many_appends(to, wanted));
  wanted.extension.number = to.appended.empty() ? 0 : to.appended.rbegin()->first + 1;
  return nullptr;
}

// The same for a part after the first one. Another one of the same number is what is left of an
// append that was never whole, or whose home was started anew.
result<stored_ptr> at_other(
  pool_entry& to, const set_info& wanted, std::vector<stored_ptr>& replaced) {
  if (!to.appending.is_nil())
    return fail(being_appended(to, wanted));
  auto found = to.appended.find(wanted.extension.number);
  if (found == to.appended.end() && to.appended.size() >= appends_max)
    return fail(too_many_appends(to, wanted));
  if (found == to.appended.end())
    return nullptr;
  if (found->second->info().division.whole == wanted.division.whole)
    return found->second;
  replaced.push_back(std::move(found->second));
  to.appended.erase(found);
  return nullptr;
}

// Gives what is to be filled its name, or the name of the set that it is appended to.
void begin_filling(pool_table& table, const set_info& wanted) {
  if (is_extension(wanted))
    table.names.at(wanted.name).appending = wanted.id;
  else
    table.names.emplace(
      wanted.name,
      pool_entry{nullptr, wanted.id, wanted.division.whole, wanted.owner, wanted.while_used, 0});
}

// It may have been published or unloaded meanwhile.
void end_filling(pool_table& table, const set_info& wanted) {
  auto found = table.names.find(wanted.name);
  if (found == table.names.end())
    return;
  auto& entry = found->second;
  if (is_extension(wanted) && entry.appending == wanted.id)
    entry.appending = {};
  else if (!is_extension(wanted) && !entry.set && entry.id == wanted.id)
    table.names.erase(found);
}

// Gives a set, for which there is room, its name and its regions. Called under the lock. `after` is
// dropped after it.
std::shared_ptr<set_filling> take(
  const std::shared_ptr<pool_table>& table, const set_info& wanted,
  std::vector<stored_ptr>& after) {
  after.reserve(after.size() + 1);
  begin_filling(*table, wanted);
  std::vector<set_region> regions;
  stored_ptr set;
  try {
    regions = take_regions(*table, wanted);
    set = std::make_shared<const stored_set>(table, wanted, regions);
    after.push_back(set);
    return std::make_shared<set_filling>(table, set);
  } catch (...) {
    if (!set)
      give_back(*table, wanted.owner, regions);
    end_filling(*table, wanted);
    throw;
  }
}

// A set that is there is used by who asks for it. Null: it is not.
result<found_set> preloaded_already(pool_table& table, const set_info& wanted) {
  auto found = table.names.find(wanted.name);
  if (found == table.names.end())
    return found_set{};
  auto known = existing(found->second, wanted);
  if (!known)
    return fail(known.error());
  found->second.used_at = ++table.uses;
  found->second.while_used = found->second.while_used && wanted.while_used;
  return found_set{std::move(*known), described(found->second)};
}

// The same for samples that are to be appended. What they replace is dropped after the lock.
result<found_set> appended_already(
  pool_table& table, set_info& wanted, const std::string& asker,
  std::vector<stored_ptr>& replaced) {
  auto found = table.names.find(wanted.name);
  auto* to = found == table.names.end() ? nullptr : &found->second;
  if (auto bad = check_target(to, wanted, asker); !bad.ok())
    return fail(bad);
  auto known = wanted.division.index == 0 ? at_home(*to, wanted) : at_other(*to, wanted, replaced);
  if (!known)
    return fail(known.error());
  to->used_at = ++table.uses;
  wanted.owner = to->owner;
  wanted.while_used = false; // it goes with the set
  return !*known ? found_set{}
                 : found_set{*known, *known == to->set ? described(*to) : (*known)->info()};
}

status no_filling(const set_info& info) {
  if (is_extension(info))
    return {
      errc::not_found, "working set {} was unloaded while samples were appended to it", info.name};
  return {
    errc::invalid_argument, "working set {} is not being filled here, or was published", info.name};
}

} // namespace

stored_set::stored_set(
  std::shared_ptr<detail::pool_table> table, set_info info, std::vector<set_region> regions)
  : table_(std::move(table)), info_(std::move(info)), regions_(std::move(regions)) {}

stored_set::~stored_set() {
  std::lock_guard guard{table_->mutex};
  give_back(*table_, info_.owner, regions_);
}

set_filling::set_filling(
  std::shared_ptr<detail::pool_table> table, std::shared_ptr<const stored_set> set) noexcept
  : table_(std::move(table)), set_(std::move(set)) {}

set_filling::~set_filling() {
  std::lock_guard guard{table_->mutex};
  end_filling(*table_, info());
}

std::string process_owner() { return fmt::format("user {}", ::geteuid()); }

bool may_change(const std::string& owner, const std::string& asker) {
  return asker == owner || asker == "user 0" || asker == process_owner();
}

sample_pool::sample_pool(
  std::vector<pool_region> regions, std::uint64_t region_bytes, const pool_limits& limits)
  : table_(std::make_shared<pool_table>(std::move(regions), region_bytes, limits)) {}

sample_pool::~sample_pool() {
  std::map<std::string, pool_entry> dropped;
  std::lock_guard guard{table_->mutex};
  dropped.swap(table_->names);
}

result<reserved_set> sample_pool::reserve(set_info wanted, const std::string& owner) {
  wanted.region_bytes = table_->region_bytes;
  wanted.appended.clear();
  if (auto bad = place_fields(wanted); !bad.ok())
    return fail(bad);
  if (auto bad = validate(wanted); !bad.ok()) // the division
    return fail(bad);
  wanted.id = random_id<set_id>();
  wanted.owner = owner;
  wanted.preloaded_at_ns = wall_clock_ns();
  std::vector<std::string> evicted;
  for (;;) {
    std::vector<stored_ptr> dropped; // after the lock
    std::lock_guard guard{table_->mutex};
    auto known = is_extension(wanted) ? appended_already(*table_, wanted, owner, dropped)
                                      : preloaded_already(*table_, wanted);
    if (!known)
      return fail(known.error());
    if (known->set)
      return reserved_set{
        nullptr, std::move(known->set), std::move(known->info), std::move(evicted)};
    if (!dropped.empty())
      continue; // with its memory
    auto bad = check_room(*table_, wanted);
    if (bad.ok())
      return reserved_set{take(table_, wanted, dropped), nullptr, {}, std::move(evicted)};
    if (table_->limits.when_full == room_policy::evict)
      dropped = evict_for(*table_, wanted);
    if (dropped.empty())
      return fail(bad);
    for (auto& set : dropped)
      if (!is_extension(set->info()))
        evicted.push_back(set->info().name);
  }
}

result<stored_ptr> sample_pool::publish(const std::shared_ptr<set_filling>& filling) {
  auto& info = filling->info();
  std::lock_guard guard{table_->mutex};
  auto found = table_->names.find(info.name);
  if (found == table_->names.end() || !found->second.is_filled_by(info))
    return fail(no_filling(info));
  auto& entry = found->second;
  entry.used_at = ++table_->uses;
  if (is_extension(info)) {
    entry.appended.emplace(info.extension.number, filling->set_);
    entry.appending = {};
  } else {
    entry.set = filling->set_;
    ++table_->preloads;
  }
  return filling->set_;
}

result<found_set> sample_pool::look_up(const std::string& name, const set_id& id) const {
  std::lock_guard guard{table_->mutex};
  auto found = table_->names.find(name);
  if (found == table_->names.end())
    return fail(errc::not_found, "no working set has the name {}", name);
  if (!found->second.set)
    return fail(errc::not_found, being_filled(name, found->second).detail());
  auto& entry = found->second;
  auto part = extension_of(entry, id);
  if (!entry.is_meant_by(id) && part == entry.appended.end())
    return fail(another_life(name));
  entry.used_at = ++table_->uses;
  if (entry.is_meant_by(id))
    return found_set{entry.set, described(entry)};
  return found_set{part->second, part->second->info()};
}

result<stored_ptr> sample_pool::find(const std::string& name, const set_id& id) const {
  return look_up(name, id).map([](found_set&& found) { return std::move(found.set); });
}

bool sample_pool::end_use(const std::string& name, const set_id& id) {
  pool_entry dropped; // after the lock
  std::lock_guard guard{table_->mutex};
  auto found = table_->names.find(name);
  if (found == table_->names.end() || found->second.id != id || !found->second.set)
    return false;
  found->second.used_at = ++table_->uses;
  if (!found->second.while_used)
    return false;
  dropped = std::move(found->second);
  table_->names.erase(found);
  ++table_->unloads;
  return true;
}

status sample_pool::unload(const std::string& name, const set_id& id, const std::string& asker) {
  pool_entry dropped; // after the lock
  std::lock_guard guard{table_->mutex};
  auto found = table_->names.find(name);
  if (found == table_->names.end())
    return {errc::not_found, "no working set has the name {}", name};
  auto& set = found->second;
  auto part = extension_of(set, id);
  auto is_part = part != set.appended.end() || (!id.is_nil() && set.appending == id);
  if (!set.is_meant_by(id) && !is_part)
    return another_life(name);
  if (!may_change(set.owner, asker))
    return {
      errc::permission_denied, "working set {} belongs to {}, and {} may not unload it", name,
      set.owner, asker};
  if (!set.set && id.is_nil())
    return being_filled(name, set);
  if (set.is_meant_by(id)) {
    table_->unloads += set.set != nullptr;
    dropped = std::move(set);
    table_->names.erase(found); // so what is being filled can be published no more
  } else if (part != set.appended.end()) {
    dropped.set = part->second;
    set.appended.erase(part);
  } else {
    set.appending = {};
  }
  return {};
}

std::vector<set_info> sample_pool::list(
  const std::string& prefix, const std::string& after, std::size_t count_max, bool parts) const {
  std::vector<set_info> out;
  std::lock_guard guard{table_->mutex};
  auto& names = table_->names;
  auto at = after < prefix ? names.lower_bound(prefix) : names.upper_bound(after);
  for (; at != names.end() && at->first.starts_with(prefix) && out.size() < count_max; ++at)
    if (at->second.set && (parts || at->second.set->info().division.index == 0))
      out.push_back(described(at->second));
  return out;
}

data_status sample_pool::stats() const {
  data_status out;
  std::lock_guard guard{table_->mutex};
  out.capacity_bytes = table_->capacity_bytes();
  out.used_bytes = out.capacity_bytes - table_->free_bytes();
  out.region_bytes = table_->region_bytes;
  for (auto& [name, entry] : table_->names) {
    out.sets += entry.set != nullptr;
    out.filling += !entry.set || !entry.appending.is_nil(); // never both
    out.windows += entry.set && is_window(entry.set->info());
  }
  out.preloads = table_->preloads;
  out.unloads = table_->unloads;
  out.evictions = table_->evictions;
  return out;
}

} // namespace millrace::storage::samples
