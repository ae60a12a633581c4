// A client's cache of layer descriptions. An id always means the same structure, so entries never
// change. Used by `client_core`.
#pragma once

#include <millrace/core/model_graph.hpp>

#include <cstddef>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace millrace::runtime {

/// Maps layer ids to descriptions. The size is bounded; a full cache is cleared and filled again.
/// Threads: any.
class layer_cache {
public:
  explicit layer_cache(std::size_t entries_max) : entries_max_(entries_max) {}

  std::shared_ptr<const layer_description> find(const layer_id& id) const {
    std::lock_guard guard{mutex_};
    auto found = known_.find(id);
    return found == known_.end() ? nullptr : found->second;
  }

  void add(const layer_id& id, layer_description description) {
    std::lock_guard guard{mutex_};
    if (known_.size() >= entries_max_)
      known_.clear();
    known_.try_emplace(id, std::make_shared<const layer_description>(std::move(description)));
  }

  std::size_t size() const {
    std::lock_guard guard{mutex_};
    return known_.size();
  }

private:
  const std::size_t entries_max_;
  mutable std::mutex mutex_;
  std::unordered_map<layer_id, std::shared_ptr<const layer_description>> known_;
};

/// The layers that a provider has been told of, so that a store need not describe them again. This
/// is a guess: a provider that has forgotten layers says so, and then all are sent.
class told_layers {
public:
  explicit told_layers(std::size_t entries_max) : entries_max_(entries_max) {}

  bool contains(const layer_id& id) const {
    std::lock_guard guard{mutex_};
    return told_.contains(id);
  }

  void add(const std::vector<layer_id>& ids) {
    std::lock_guard guard{mutex_};
    if (told_.size() + ids.size() > entries_max_)
      told_.clear();
    told_.insert(ids.begin(), ids.end());
  }

private:
  const std::size_t entries_max_;
  mutable std::mutex mutex_;
  std::unordered_set<layer_id> told_;
};

} // namespace millrace::runtime
