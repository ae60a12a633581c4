// Memory of this process that peers may reach while its `region` lives.
// Made by the fabric; movers and drivers take leases.
#pragma once

#include <millrace/core/bulk_handle.hpp>
#include <millrace/transport/memory/gather_list.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace millrace::transport {

class region_entry;

/// Keeps an exposed run of bytes reachable, and withdraws it when destroyed.
class region {
public:
  region() = default;
  explicit region(std::shared_ptr<region_entry> entry) : entry_(std::move(entry)) {}
  region(region&&) noexcept = default;
  region& operator=(region&& other) noexcept;
  ~region() { withdraw(); }

  /// Returns true if it stands for memory that has not been withdrawn.
  explicit operator bool() const noexcept;

  /// Returns the handle to send to the process that is to move the bytes. It has one segment: the
  /// whole region.
  bulk_handle handle() const;

  /// Puts other memory of the same size behind the handle, which does not change. Both lie on the
  /// host, or both in part on devices. Accesses that begin from now on find the new memory. Returns
  /// the exposure of the old one; those that have begun go on there until it is withdrawn.
  region replace(gather_list list);

  /// Refuses every later access. Returns when no mover touches the memory any more, which takes the
  /// time of one chunk at most. A second call does nothing more.
  /// Threads: any, several at once.
  void withdraw() noexcept;

private:
  std::shared_ptr<region_entry> entry_;
};

/// Exposes the bytes of `list` to holders of the handle. Threads: any.
region expose(gather_list list, access_mode how);

/// The right to touch one region's memory for a moment. Movers take one lease per chunk.
class region_lease {
public:
  region_lease() = default;
  explicit region_lease(std::shared_ptr<region_entry> entry) noexcept : entry_(std::move(entry)) {}
  region_lease(region_lease&&) noexcept = default;
  region_lease& operator=(region_lease&&) = delete;
  ~region_lease();

  const gather_list& memory() const noexcept;

private:
  std::shared_ptr<region_entry> entry_;
};

/// A region found by its handle's numbers, after the key and the kind of access were checked.
class region_ref {
public:
  explicit region_ref(std::shared_ptr<region_entry> entry) : entry_(std::move(entry)) {}

  std::uint64_t size_bytes() const noexcept;
  /// Returns the region's first byte if the region is one dense run of host memory, else null.
  std::byte* dense() const noexcept;
  /// Returns the devices in whose memory a part of the region lies; empty for host memory.
  const std::vector<std::shared_ptr<device_memory>>& devices() const noexcept;
  /// Returns a lease.
  /// Errors:  `permission_denied` once the region is withdrawn.
  result<region_lease> lease() const;

  /// Runs `f` when the region is withdrawn: after its last lease, before `withdraw` returns, on
  /// that thread. For devices that reach the memory by themselves. Returns the number for `forget`.
  /// Errors:  `permission_denied` once the region is withdrawn.
  result<std::uint64_t> on_withdraw(std::function<void()> f) const;
  /// Removes a hook. It may still be running on another thread, but it will not begin any more.
  void forget(std::uint64_t hook) const;

private:
  std::shared_ptr<region_entry> entry_;
};

/// Which memory the caller can work with.
enum class memory_reach : std::uint8_t { host, any };

/// Finds a region and checks the key and the kind of access.
/// Errors:  `permission_denied`, with the same words for a wrong number, a wrong key, a withdrawn
///          region and the wrong kind of access, so that guessing learns nothing; `unsupported` for
///          device memory, unless `reach` allows it.
result<region_ref> find_region(
  std::uint64_t number, const region_key& key, access_mode how,
  memory_reach reach = memory_reach::host);

/// Returns how many regions are exposed in this process; for leak tests and `status`.
std::size_t exposed_regions() noexcept;

} // namespace millrace::transport
