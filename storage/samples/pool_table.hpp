// What the pool of a data server, its sets and its fillings share, and the room in it.
// Internal, behind `sample_pool`.
#pragma once

#include <millrace/storage/samples/sample_pool.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace millrace::storage::samples::detail {

using stored_ptr = std::shared_ptr<const stored_set>;

/// A name, with what it keeps.
struct pool_entry {
  stored_ptr set; // null: being filled
  set_id id;
  set_id whole; // nil: the set is not divided
  std::string owner;
  bool while_used = false;
  std::uint64_t used_at = 0;                         // in `uses`
  std::map<std::uint32_t, stored_ptr> appended = {}; // what this node has of extensions
  set_id appending = {};                             // the extension that is being filled, or nil

  bool is_meant_by(const set_id& wanted) const {
    return wanted.is_nil() || wanted == id || wanted == whole;
  }
  /// Returns whether a set that is being filled would be published under this name.
  bool is_filled_by(const set_info& filled) const {
    return is_extension(filled) ? appending == filled.id : !set && id == filled.id;
  }
  /// Returns the id that extensions name.
  const set_id& whole_id() const { return whole.is_nil() ? id : whole; }
};

struct pool_table {
  pool_table(std::vector<pool_region> of, std::uint64_t each_bytes, const pool_limits& bounds);

  std::uint64_t capacity_bytes() const { return regions.size() * region_bytes; }
  std::uint64_t free_bytes() const { return free.size() * region_bytes; }

  const std::vector<pool_region> regions;
  const std::uint64_t region_bytes;
  const pool_limits limits;

  std::mutex mutex;                // for what follows
  std::vector<std::uint32_t> free; // the next one is at the end
  std::map<std::string, pool_entry> names;
  std::map<std::string, std::uint64_t>
    owned;                // regions of each owner's sets, while anybody has them
  std::uint64_t uses = 0; // begun and ended
  std::uint64_t preloads = 0, unloads = 0, evictions = 0;
};

// All of these are called under the lock.

/// Checks that there is room for a set. Errors: `no_space` saying what it lacks.
[[nodiscard]] status check_room(const pool_table& table, const set_info& set);

/// Takes sets away, with what was appended to them, that make room for another one; none if all
/// that could go do not suffice. The caller drops what is returned after the lock.
std::vector<stored_ptr> evict_for(pool_table& table, const set_info& set);

/// Takes the regions of a set, for which there is room.
std::vector<set_region> take_regions(pool_table& table, const set_info& set);

void give_back(pool_table& table, const std::string& owner, const std::vector<set_region>& regions);

} // namespace millrace::storage::samples::detail
