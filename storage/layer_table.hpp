// The table of layer descriptions, each kept as long as a model names it. Used by every kind of
// bucket.
#pragma once

#include <millrace/core/model.hpp>
#include <millrace/core/status.hpp>
#include <millrace/storage/space_account.hpp>

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

  /// `account`: what descriptions are counted against; null: they are not counted.
  explicit layer_table(
    std::shared_ptr<space_account> account = nullptr, forgotten on_forgotten = nullptr)
    : account_(std::move(account)), on_forgotten_(std::move(on_forgotten)) {}

  /// Returns a lease of the layers. Errors: `unknown_layers` naming the first id that is neither
  /// known nor among `described`; `no_space`.
  result<layer_lease> retain(
    std::vector<layer_id> ids, const std::vector<described_layer>& described);
  /// The same for a model that was here before: it is counted even beyond the capacity.
  result<layer_lease> retain_stored(
    std::vector<layer_id> ids, const std::vector<described_layer>& described);

  /// Returns what `retain` would count for the layers that are not known yet.
  std::uint64_t new_bytes(
    const std::vector<layer_id>& ids, const std::vector<described_layer>& described) const;
  /// Returns what is counted for the layers that only one model names.
  std::uint64_t unshared_bytes(const std::vector<layer_id>& ids) const;

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

  using offered_layers = std::unordered_map<layer_id, const described_layer*>;

  static offered_layers index(const std::vector<described_layer>& described);
  std::uint64_t unknown_bytes(
    const std::vector<layer_id>& ids, const offered_layers& offered) const;
  template <class Take>
  result<layer_lease> retain_counted(
    std::vector<layer_id> ids, const std::vector<described_layer>& described, Take take);
  void release(const std::vector<layer_id>& ids);

  const std::shared_ptr<space_account> account_;
  mutable std::mutex mutex_;
  std::unordered_map<layer_id, entry> entries_;
  forgotten on_forgotten_;
};

} // namespace millrace::storage
