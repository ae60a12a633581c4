// A run of bytes registered with every device.
// Kept for arenas and by the registration cache.
#pragma once

#include <millrace/transport/memory/device_memory.hpp>
#include <millrace/transport/verbs/device.hpp>

#include <atomic>
#include <vector>

namespace millrace::transport::verbs {

/// A registration. Until it goes, the pages stay in place and the devices may use them. Windows for
/// peers are bound over it; by itself it gives peers no access.
class registered_memory {
public:
  /// Registers memory. Blocks while the pages are pinned.
  /// Errors:  `unsupported` for memory that a device cannot register (such as a read-only or DAX
  ///          file mapping); `no_space` when the limit of locked memory is reached.
  static result<std::shared_ptr<registered_memory>> add(
    const device_list& devices, std::byte* data, std::uint64_t size_bytes);

  std::byte* data() const noexcept { return data_; }
  std::uint64_t size_bytes() const noexcept { return size_bytes_; }
  ibv_mr* of(std::size_t rail) const noexcept { return regions_[rail].get(); }
  std::uint32_t local_key(std::size_t rail) const noexcept { return regions_[rail]->lkey; }
  std::uint64_t node_mask() const noexcept { return node_mask_; }

private:
  registered_memory() = default;

  device_list devices_; // outlive the registrations
  std::byte* data_ = nullptr;
  std::uint64_t size_bytes_ = 0;
  std::uint64_t node_mask_ = 0;
  std::vector<mr_ptr> regions_;
};

/// Registers device memory, such as a GPU's: by a dma-buf if both devices can, else by its
/// addresses if a kernel module allows that. Returns null and sets `errno` if neither works.
mr_ptr register_directly(
  const device& d, device_memory& of, std::byte* data, std::uint64_t size_bytes, int access);

/// Counts the direct registrations of this process that succeeded, by method.
struct direct_registrations {
  std::atomic<std::uint64_t> by_dma_buf = 0;
  std::atomic<std::uint64_t> by_peer_memory = 0;
};
const direct_registrations& registered_directly() noexcept;

/// Returns why `ibv_reg_mr` refused, with the remedy.
status registration_error(int why, const device& d, std::uint64_t size_bytes);

} // namespace millrace::transport::verbs
