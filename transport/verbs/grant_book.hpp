// The regions of ours that one peer may reach, with their keys.
// Owned by `lending_side`, which calls it when the peer asks.
#pragma once

#include <millrace/transport/copy/mover_pool.hpp>
#include <millrace/transport/memory/region.hpp>
#include <millrace/transport/verbs/arena_registry.hpp>
#include <millrace/transport/verbs/queue_pair.hpp>
#include <millrace/transport/verbs/registration_cache.hpp>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace millrace::transport::verbs {

/// A queue pair of this process over which keys can be bound now.
struct live_pair {
  std::uint32_t pair = 0;
  std::uint32_t generation = 0;
  std::uint32_t device_index = 0;
  std::shared_ptr<device> port;
};

/// Keys for all ranges of a region over one queue pair.
struct pair_grant {
  live_pair over;
  std::vector<std::shared_ptr<remote_key>> keys;
};

/// The registrations that keys are made from; shared by all peers.
struct memory_sources {
  device_list devices;
  std::shared_ptr<arena_registry> arenas;
  std::shared_ptr<registration_cache> cache;
};

/// A region that one peer may reach.
///
/// *Problem*: after a region is withdrawn its memory is freed, and the peer's device does not ask
/// before it accesses it. So the region's own `withdraw` revokes the keys before it returns,
/// whatever the peer and the connection are doing.
class grant {
public:
  using ranges = std::vector<gather_list::dense_range>;

  /// Ends every access by the keys. A second caller waits for the first. Threads: any.
  void revoke() noexcept;
  bool revoked() const;
  ~grant();

private:
  friend class grant_book;

  mutable std::mutex mutex_;
  bool revoked_ = false;
  bool made_ = false;
  std::uint64_t region_bytes_ = 0;
  std::uint64_t node_mask_ = 0; // the NUMA nodes of the memory
  std::string pci_address_;     // the GPU that has the memory; empty for host memory
  ranges ranges_;
  // One per range; null: the keys register exactly their range, on each device.
  std::vector<std::shared_ptr<void>> registrations_;
  std::vector<pair_grant> pairs_;
  std::vector<std::weak_ptr<remote_key>> unanswered_; // made, and perhaps bound, but not sent yet
  std::optional<region_ref> region_;
  std::uint64_t hook_ = 0;
};

/// The grants to one peer. Made by `make_shared` only.
/// Threads: `prepare` on movers (it blocks while pages are pinned); the others any.
class grant_book : public std::enable_shared_from_this<grant_book> {
public:
  grant_book(
    memory_sources sources, const verbs_options& options, std::function<void(std::uint64_t)> gone)
    : sources_(std::move(sources)), options_(options), gone_(std::move(gone)) {}

  /// Keys that must still be bound, each over its queue pair.
  struct prepared {
    std::shared_ptr<grant> g;
    std::vector<pair_grant> unbound;
  };
  /// Finds or makes the grant, with keys over all the given pairs.
  /// Errors:  `permission_denied`; `unsupported` for memory that devices cannot reach, and when
  ///          bounds are reached.
  result<prepared> prepare(
    std::uint64_t region, const region_ref& memory, direction dir,
    const std::vector<live_pair>& pairs);
  /// Returns the answer, with all pairs whose keys are bound, including those in `bound`.
  result<granted> answer(const std::shared_ptr<grant>& g, std::vector<pair_grant> bound);
  /// Makes no more grants. Does not block.
  void shut();
  /// Revokes everything. Call it after `shut`. Blocks while memory is registered.
  void clear();

  std::size_t size() const;
  std::uint64_t windows() const noexcept { return windows_->load(); }

private:
  result<std::shared_ptr<grant>> find_or_make(std::uint64_t region, const region_ref& memory);
  status register_ranges(grant& g, const gather_list& list, direction dir);
  result<std::shared_ptr<void>> registration_of(const gather_list::dense_range& r);
  result<pair_grant> keys_over(const grant& g, const live_pair& over, direction dir);
  void forget(std::uint64_t region);

  const memory_sources sources_;
  const verbs_options options_;
  // Called when a region of which the peer had keys was withdrawn.
  const std::function<void(std::uint64_t)> gone_;
  const std::shared_ptr<std::atomic<std::uint64_t>> windows_ =
    std::make_shared<std::atomic<std::uint64_t>>(0);
  mutable std::mutex mutex_;
  bool closed_ = false;
  std::map<std::uint64_t, std::shared_ptr<grant>> grants_;
};

} // namespace millrace::transport::verbs
