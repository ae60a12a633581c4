// Memory of this process that peers may reach while its `region` lives. Made by the fabric.
#pragma once

#include <millrace/core/bulk_handle.hpp>
#include <millrace/transport/memory/gather_list.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace millrace::transport {

class region_entry;

/// Keeps an exposed run of bytes reachable; withdraws it when destroyed.
class region {
public:
  region() = default;
  explicit region(std::shared_ptr<region_entry> entry) : entry_(std::move(entry)) {}
  region(region&&) noexcept = default;
  region& operator=(region&& other) noexcept;
  ~region() { withdraw(); }

  /// Whether it stands for memory that has not been withdrawn.
  explicit operator bool() const noexcept;

  /// The handle to send to whoever shall move the bytes. One segment: the whole region.
  bulk_handle handle() const;

  /// Refuses every later access and returns once no mover touches the memory any more (the time of one
  /// chunk at most). Idempotent; any thread, several at once.
  void withdraw() noexcept;

private:
  std::shared_ptr<region_entry> entry_;
};

/// Exposes the bytes of `list` to holders of the handle. Any thread.
region expose(gather_list list, access_mode how);

/// The right to touch one region's memory for a moment. Movers take one per chunk.
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

/// A region found by its handle's numbers: the key and the kind of access have been checked.
class region_ref {
public:
  explicit region_ref(std::shared_ptr<region_entry> entry) : entry_(std::move(entry)) {}

  std::uint64_t size_bytes() const noexcept;
  /// Those in whose memory some of it lies; empty for memory of the host.
  const std::vector<std::shared_ptr<device_memory>>& devices() const noexcept;
  /// Errors: `permission_denied` once the region is withdrawn.
  result<region_lease> lease() const;

  /// Runs `f` when the region is withdrawn: after its last lease, before `withdraw` returns, on that thread. For
  /// devices that reach the memory by themselves. The number forgets it.
  /// Errors: `permission_denied` once the region is withdrawn.
  result<std::uint64_t> on_withdraw(std::function<void()> f) const;
  /// It may be running on another thread; it will not begin any more.
  void forget(std::uint64_t hook) const;

private:
  std::shared_ptr<region_entry> entry_;
};

/// Which memory the caller can deal with.
enum class memory_reach : std::uint8_t { host, any };

/// Errors: `permission_denied`, the same words for a wrong number, a wrong key, a withdrawn region and the
/// wrong kind of access, so that guessing learns nothing; `unsupported` for memory of a device, unless the caller
/// said that it never touches it as the host's.
result<region_ref> find_region(
  std::uint64_t number, const region_key& key, access_mode how,
  memory_reach reach = memory_reach::host);

/// Regions exposed now in this process; for tests of leaks and `status`.
std::size_t exposed_regions() noexcept;

} // namespace millrace::transport
