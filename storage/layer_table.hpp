// The table of layer descriptions, each kept as long as a model names it. Used by every kind of
// bucket.
#pragma once

#include <millrace/core/model.hpp>
#include <millrace/core/status.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace millrace::storage {

class layer_table;

/// Keeps the descriptions of one model's layers. When it is destroyed, layers that no other model
/// names are forgotten.
class layer_lease {
public:
  layer_lease() = default;
  layer_lease(std::shared_ptr<layer_table> table, std::vector<layer_id> ids)
    : table_(std::move(table)), ids_(std::move(ids)) {}
  layer_lease(layer_lease&& other) noexcept = default;
  layer_lease& operator=(layer_lease&& other) noexcept {
    std::swap(table_, other.table_);
    std::swap(ids_, other.ids_);
    return *this;
  }
  ~layer_lease();

  const std::vector<layer_id>& ids() const noexcept { return ids_; }

private:
  std::shared_ptr<layer_table> table_;
  std::vector<layer_id> ids_;
};

/// Threads: any.
class layer_table : public std::enable_shared_from_this<layer_table> {
public:
  /// Called, with no lock held, with the saved layers that were forgotten.
  using forgotten = std::function<void(const std::vector<layer_id>&)>;

  explicit layer_table(forgotten on_forgotten = nullptr) : on_forgotten_(std::move(on_forgotten)) {}

  /// Returns a lease of the layers. Errors: `unknown_layers` naming the first id that is neither
  /// known nor among `described`.
  result<layer_lease> retain(
    std::vector<layer_id> ids, const std::vector<described_layer>& described);

  /// Returns the descriptions. Errors: `not_found` naming the first unknown id.
  result<std::vector<described_layer>> resolve(const std::vector<layer_id>& ids) const;

  bool knows(const layer_id& id) const;

  /// Returns the layers of the lease that are not marked as saved. For durable kinds.
  std::vector<described_layer> unsaved(const layer_lease& lease) const;
  void mark_saved(const std::vector<layer_id>& ids);

private:
  friend class layer_lease;

  struct entry {
    std::vector<std::byte> description;
    std::uint64_t models = 0;
    bool saved = false;
  };

  void release(const std::vector<layer_id>& ids);

  mutable std::mutex mutex_;
  std::unordered_map<layer_id, entry> entries_;
  forgotten on_forgotten_;
};

} // namespace millrace::storage
