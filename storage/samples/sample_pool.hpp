// The memory of a data server: regions, and the working sets in them. Called by the data server's
// actor; knows neither transports nor actors, and survives the actor.
#pragma once

#include <millrace/core/working_set.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace millrace::storage::samples {

/// One of the pool's regions, all of the same size.
struct pool_region {
  std::span<std::byte> bytes;
  /// Rises when the region is lent, before anybody can write to it. A reader that has copied bytes,
  /// and then finds the number that it was told when it opened the set, has copied bytes of that
  /// set. Lies where readers can see it.
  std::atomic<std::uint64_t>* generation = nullptr;
  std::shared_ptr<void> hold = nullptr; // keeps both alive; may be null
};

/// A region that a set has.
struct set_region {
  std::uint32_t index = 0;    // in the pool
  std::span<std::byte> bytes; // the set's own: fewer than the region has in the last one
  std::uint64_t generation = 0;
};

namespace detail {
struct pool_table;
}

/// What becomes of a preload for which there is no room.
enum class room_policy : std::uint8_t {
  refuse, // it fails with `no_space`
  evict   // sets that nobody has open are unloaded, the least recently used ones first
};

struct pool_limits {
  std::size_t sets_max = 4096;   // sets that have a name, and appends
  std::uint64_t quota_bytes = 0; // in regions, of the sets of one owner; 0: no quota
  room_policy when_full = room_policy::refuse;
};

/// A set in memory. Its regions return to the pool when the last copy of the pointer is destroyed,
/// so that readers finish after an unload, even after the pool's end.
/// Threads: any.
class stored_set {
public:
  stored_set(
    std::shared_ptr<detail::pool_table> table, set_info info, std::vector<set_region> regions);
  ~stored_set();
  stored_set(const stored_set&) = delete;
  stored_set& operator=(const stored_set&) = delete;

  const set_info& info() const noexcept { return info_; }
  /// Returns the regions in the order of the set's addresses.
  const std::vector<set_region>& regions() const noexcept { return regions_; }

private:
  std::shared_ptr<detail::pool_table> table_;
  set_info info_;
  std::vector<set_region> regions_;
};

/// A set that is being filled, and that `find` does not find. One that is destroyed before it was
/// published is abandoned: its name and its regions are free again. Code that may still write the
/// bytes keeps a copy of the pointer.
/// Threads: any.
class set_filling {
public:
  set_filling(
    std::shared_ptr<detail::pool_table> table, std::shared_ptr<const stored_set> set) noexcept;
  ~set_filling();
  set_filling(const set_filling&) = delete;
  set_filling& operator=(const set_filling&) = delete;

  const set_info& info() const noexcept { return set_->info(); }
  /// Returns the regions to fill, in the order of the set's addresses.
  const std::vector<set_region>& regions() const noexcept { return set_->regions(); }

private:
  friend class sample_pool;

  std::shared_ptr<detail::pool_table> table_;
  std::shared_ptr<const stored_set> set_;
};

/// What `reserve` gives: one of the two.
struct reserved_set {
  std::shared_ptr<set_filling> filling;
  std::shared_ptr<const stored_set> existing; // the same source is preloaded already
  set_info described = {};                    // the existing one, from now on
  std::vector<std::string> evicted = {};      // names of sets that were unloaded for it
};

/// A set, or a part of an extension, and its description now: with what was appended to it.
struct found_set {
  std::shared_ptr<const stored_set> set; // null: none
  set_info info = {};
};

/// Returns the owner that sets have which this process preloads itself: "user 1000".
std::string process_owner();

/// Returns whether `asker` may unload, end or remove what `owner` has: the owner itself, "user 0",
/// and `process_owner()` may.
bool may_change(const std::string& owner, const std::string& asker);

/// The regions of one data server, and a table of the sets in them by name. Regions keep no order:
/// a set has any that are free.
/// Threads: any.
class sample_pool {
public:
  /// Every region has `region_bytes`.
  sample_pool(
    std::vector<pool_region> regions, std::uint64_t region_bytes, const pool_limits& limits);
  /// Drops the sets. Regions that are still held stay valid.
  ~sample_pool();
  sample_pool(const sample_pool&) = delete;
  sample_pool& operator=(const sample_pool&) = delete;

  /// Takes all regions of a set, or none. The pool places the fields in regions of its size; the
  /// set gets an id, `owner` and the time. If the set is there, with equal `identity`, `source`,
  /// `left_out` and `window_bytes`, it is returned instead, whoever has preloaded it; it stays from
  /// now on, unless `wanted` is `while_used`, too. Of a divided set, the first part stands for the
  /// set, and any other part is there only if it is that of the same whole.
  ///
  /// An extension (`set_info::extension`) is kept under the name of its set, and goes with it. Its
  /// owner is that of the set. The home's part, the first one, decides: if the set has the same
  /// samples already, preloaded or appended, what it has of them is returned; otherwise the pool
  /// says the number. Another part of the same number and of another extension is replaced.
  ///
  /// With `room_policy::evict` sets make room that have been published and that nobody holds: any,
  /// or, where the quota is what lacks, those of the owner. If all of them do not suffice, none
  /// does.
  ///
  /// Errors:  `invalid_argument` for a description that `place_fields` refuses; `already_exists`
  ///          when the name is that of another set; `busy` while it is being filled, naming by
  ///          whom; `no_space` with the bytes asked for, the bytes free and the capacity, with the
  ///          quota, or with the number of sets or appends; for an extension `not_found` when the
  ///          set is not there, `busy` while another append fills one, `invalid_argument` as
  ///          `check_appends`, `permission_denied` naming the owner.
  result<reserved_set> reserve(set_info wanted, const std::string& owner);

  /// Makes a set visible under its name, and an extension as a part of its set. Errors:
  /// `invalid_argument` when it was published before, or comes from another pool; `not_found` when
  /// the set was unloaded meanwhile.
  result<std::shared_ptr<const stored_set>> publish(const std::shared_ptr<set_filling>& filling);

  /// Begins a use of the set.
  /// `id`: of the life that is meant, or of the whole that the part belongs to; or of an extension,
  /// whose part is found then; nil: any set.
  /// Errors:  `not_found`, naming who fills the set if someone does.
  result<found_set> look_up(const std::string& name, const set_id& id = {}) const;
  /// Does the same, without a description.
  result<std::shared_ptr<const stored_set>> find(
    const std::string& name, const set_id& id = {}) const;

  /// Removes a set's name, and all that was appended; or one extension, if `id` says so. `id`: as
  /// for `look_up`. What is being filled is given up if `id` names it: then it cannot be published,
  /// and its regions are free when nobody fills them any more. `asker`: see `may_change`.
  ///
  /// Errors:  `not_found` for an unknown name, or another life of the set; `busy` while it is being
  ///          filled, if `id` is nil; `permission_denied` naming the owner.
  [[nodiscard]] status unload(const std::string& name, const set_id& id, const std::string& asker);

  /// Notes that the last holder of a set has gone: a use ends now. Removes the name if the set is
  /// `while_used`, and returns whether it was.
  bool end_use(const std::string& name, const set_id& id);

  /// Returns up to `count_max` published sets, by name: those whose names begin with `prefix` and
  /// come after `after`. `parts`: also parts of divided sets after the first one.
  std::vector<set_info> list(
    const std::string& prefix, const std::string& after, std::size_t count_max,
    bool parts = false) const;

  /// Returns the counts. `readers` is 0: the server knows them. Sets that were unloaded, and whose
  /// regions are still held, count in `used_bytes` alone.
  data_status stats() const;

private:
  std::shared_ptr<detail::pool_table> table_;
};

} // namespace millrace::storage::samples
