// Reference-counted descriptions of layers.
#include <millrace/storage/layer_table.hpp>

namespace millrace::storage {

layer_lease::~layer_lease() {
  if (table_)
    table_->release(ids_);
}

namespace {

// An entry of the table besides its description.
constexpr std::uint64_t entry_bytes = 128;

} // namespace

layer_table::offered_layers layer_table::index(const std::vector<described_layer>& described) {
  offered_layers offered;
  for (auto& layer : described)
    offered.emplace(layer.id, &layer);
  return offered;
}

// Needs the lock.
std::uint64_t layer_table::unknown_bytes(
  const std::vector<layer_id>& ids, const offered_layers& offered) const {
  std::uint64_t sum = 0;
  for (auto& id : ids)
    if (auto at = offered.find(id); at != offered.end() && !entries_.count(id))
      sum += entry_bytes + at->second->description.size();
  return sum;
}

template <class Take>
result<layer_lease> layer_table::retain_counted(
  std::vector<layer_id> ids, const std::vector<described_layer>& described, Take take) {
  auto offered = index(described);
  std::lock_guard guard{mutex_};
  for (auto& id : ids)
    if (!entries_.count(id) && !offered.count(id))
      return fail(
        errc::unknown_layers, "layer {} is not described here yet; send its description along",
        to_string(id));
  if (account_)
    if (status bad = take(*account_, unknown_bytes(ids, offered)); !bad.ok())
      return fail(std::move(bad));
  for (auto& id : ids) {
    auto& known = entries_[id];
    if (known.models++ == 0)
      known.description = offered.at(id)->description;
  }
  return layer_lease{shared_from_this(), std::move(ids)};
}

result<layer_lease> layer_table::retain(
  std::vector<layer_id> ids, const std::vector<described_layer>& described) {
  return retain_counted(
    std::move(ids), described, [](auto& account, auto bytes) { return account.take(bytes); });
}

result<layer_lease> layer_table::retain_stored(
  std::vector<layer_id> ids, const std::vector<described_layer>& described) {
  return retain_counted(std::move(ids), described, [](auto& account, auto bytes) {
    account.take_anyway(bytes);
    return status{};
  });
}

std::uint64_t layer_table::new_bytes(
  const std::vector<layer_id>& ids, const std::vector<described_layer>& described) const {
  auto offered = index(described);
  std::lock_guard guard{mutex_};
  return unknown_bytes(ids, offered);
}

std::uint64_t layer_table::unshared_bytes(const std::vector<layer_id>& ids) const {
  std::uint64_t sum = 0;
  std::lock_guard guard{mutex_};
  for (auto& id : ids)
    if (auto known = entries_.find(id); known != entries_.end() && known->second.models == 1)
      sum += entry_bytes + known->second.description.size();
  return sum;
}

result<std::vector<described_layer>> layer_table::resolve(const std::vector<layer_id>& ids) const {
  std::vector<described_layer> layers;
  std::lock_guard guard{mutex_};
  for (auto& id : ids) {
    auto known = entries_.find(id);
    if (known == entries_.end())
      return fail(errc::not_found, "no model here has layer {}", to_string(id));
    layers.push_back({id, known->second.description});
  }
  return layers;
}

bool layer_table::knows(const layer_id& id) const {
  std::lock_guard guard{mutex_};
  return entries_.count(id) > 0;
}

std::vector<described_layer> layer_table::unsaved(const layer_lease& lease) const {
  std::vector<described_layer> layers;
  std::lock_guard guard{mutex_};
  for (auto& id : lease.ids())
    if (auto& known = entries_.at(id); !known.saved)
      layers.push_back({id, known.description});
  return layers;
}

void layer_table::mark_saved(const std::vector<layer_id>& ids) {
  std::lock_guard guard{mutex_};
  for (auto& id : ids)
    if (auto known = entries_.find(id); known != entries_.end())
      known->second.saved = true;
}

void layer_table::release(const std::vector<layer_id>& ids) {
  std::vector<layer_id> gone;
  {
    std::lock_guard guard{mutex_};
    for (auto& id : ids) {
      auto known = entries_.find(id);
      if (--known->second.models > 0)
        continue;
      if (known->second.saved)
        gone.push_back(id);
      if (account_)
        account_->give_back(entry_bytes + known->second.description.size());
      entries_.erase(known);
    }
  }
  if (on_forgotten_ && !gone.empty())
    on_forgotten_(gone);
}

} // namespace millrace::storage
