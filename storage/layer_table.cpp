// Reference-counted descriptions of layers.
#include <millrace/storage/layer_table.hpp>

namespace millrace::storage {

layer_lease::~layer_lease() {
  if (table_)
    table_->release(ids_);
}

result<layer_lease> layer_table::retain(
  std::vector<layer_id> ids, const std::vector<described_layer>& described) {
  std::unordered_map<layer_id, const described_layer*> offered;
  for (auto& layer : described)
    offered.emplace(layer.id, &layer);
  std::lock_guard guard{mutex_};
  for (auto& id : ids)
    if (!entries_.count(id) && !offered.count(id))
      return fail(
        errc::unknown_layers, "layer {} is not described here yet; send its description along",
        to_string(id));
  for (auto& id : ids) {
    auto& known = entries_[id];
    if (known.models++ == 0)
      known.description = offered.at(id)->description;
  }
  return layer_lease{shared_from_this(), std::move(ids)};
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
      entries_.erase(known);
    }
  }
  if (on_forgotten_ && !gone.empty())
    on_forgotten_(gone);
}

} // namespace millrace::storage
