// Looks up tensors and layers; bounds what is kept.
#include <millrace/core/model_graph.hpp>
#include <millrace/runtime/client/calls/known_models.hpp>

namespace millrace::runtime {

known_model::known_model(const model_record& record, std::string provider)
  : provider_(std::move(provider)), version_(record.version), stored_at_ns_(record.stored_at_ns),
    tensors_(record.spec.tensors.tensors) {
  by_name_.reserve(tensors_.size());
  for (auto& tensor : tensors_)
    by_name_.emplace(tensor.name, &tensor);
  if (record.spec.graph.empty())
    return;
  auto graph = decode_graph(record.spec.graph);
  if (!graph)
    return;
  for (auto& id : graph->ids)
    layers_[id];
  for (std::size_t t = 0; t < record.spec.tensor_layers.size(); ++t)
    layers_[graph->ids[record.spec.tensor_layers[t]]].push_back(t);
}

const tensor_desc* known_model::tensor(std::string_view name) const {
  auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

const std::vector<std::size_t>* known_model::layer(const layer_id& id) const {
  auto found = layers_.find(id);
  return found == layers_.end() ? nullptr : &found->second;
}

std::shared_ptr<const known_model> known_models::find(
  const std::string& group, const std::string& model) const {
  std::lock_guard guard{mutex_};
  auto found = known_.find({group, model});
  return found == known_.end() ? nullptr : found->second;
}

void known_models::keep(
  const std::string& group, const std::string& model, std::shared_ptr<const known_model> one) {
  std::lock_guard guard{mutex_};
  if (auto old = known_.find({group, model}); old != known_.end()) {
    entries_ -= old->second->entries() + 1;
    known_.erase(old);
  }
  auto entries = one->entries() + 1;
  if (entries > entries_max_)
    return;
  if (entries_ + entries > entries_max_) {
    known_.clear();
    entries_ = 0;
  }
  entries_ += entries;
  known_.emplace(std::pair{group, model}, std::move(one));
}

} // namespace millrace::runtime
