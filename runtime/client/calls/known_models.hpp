// What a client keeps of the models that it was told of, so that a load by tensors' or layers'
// names need not ask for their description again. Used by `client_core` and loads.
#pragma once

#include <millrace/core/ids.hpp>
#include <millrace/core/model.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace millrace::runtime {

/// The tensors of one version of a model, as a provider described it, with what loads look up.
/// Never changes.
class known_model {
public:
  /// `record` was checked, so that its names are unique and its graph can be decoded.
  known_model(const model_record& record, std::string provider);
  known_model(const known_model&) = delete;
  known_model& operator=(const known_model&) = delete;

  const std::string& provider() const noexcept { return provider_; }
  std::uint64_t version() const noexcept { return version_; }
  std::uint64_t stored_at_ns() const noexcept { return stored_at_ns_; }
  /// How many tensors and layers it has.
  std::size_t entries() const noexcept { return tensors_.size() + layers_.size(); }

  const std::vector<tensor_desc>& tensors() const noexcept { return tensors_; }
  /// Returns the tensor of this name; null if there is none.
  const tensor_desc* tensor(std::string_view name) const;
  /// Returns the indices of a layer's tensors; null if the model has no such layer.
  const std::vector<std::size_t>* layer(const layer_id& id) const;

private:
  std::string provider_;
  std::uint64_t version_ = 0;
  std::uint64_t stored_at_ns_ = 0;
  std::vector<tensor_desc> tensors_;
  std::unordered_map<std::string_view, const tensor_desc*> by_name_;
  std::unordered_map<layer_id, std::vector<std::size_t>> layers_;
};

/// The newest descriptions that a client has had of models, by group and name. The number of their
/// tensors and layers is bounded; when they are full, they are cleared and filled again. A
/// description may be old: who loads by one compares the receipt with it. Threads: any.
class known_models {
public:
  explicit known_models(std::size_t entries_max) : entries_max_(entries_max) {}

  std::shared_ptr<const known_model> find(const std::string& group, const std::string& model) const;
  void keep(
    const std::string& group, const std::string& model, std::shared_ptr<const known_model> one);

private:
  const std::size_t entries_max_;
  mutable std::mutex mutex_;
  std::size_t entries_ = 0;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<const known_model>> known_;
};

} // namespace millrace::runtime
