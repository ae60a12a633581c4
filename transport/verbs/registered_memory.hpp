// A run of bytes registered with every device. Kept for arenas and by the registration cache.
#pragma once

#include <millrace/transport/memory/device_memory.hpp>
#include <millrace/transport/verbs/device.hpp>

#include <atomic>
#include <vector>

namespace millrace::transport::verbs {

/// Pages stay in place and devices may use them, until it goes. Windows for peers are opened over it; it gives peers
/// nothing by itself.
class registered_memory {
public:
  /// Blocks for the time of pinning the pages. Errors: `unsupported` for memory that a device cannot have (a
  /// read-only or DAX file mapping, say), `no_space` when the limit of locked memory is reached.
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

/// Registers memory of a GPU or its like: by a dma-buf if both devices can, else by its addresses if a kernel module
/// lets this one reach them. Null, and `errno` says why, if neither works.
mr_ptr register_directly(
  const device& d, device_memory& of, std::byte* data, std::uint64_t size_bytes, int access);

/// How often that succeeded in this process, by its ways.
struct direct_registrations {
  std::atomic<std::uint64_t> by_dma_buf = 0;
  std::atomic<std::uint64_t> by_peer_memory = 0;
};
const direct_registrations& registered_directly() noexcept;

/// Why `ibv_reg_mr` refused, with the remedy.
status registration_error(int why, const device& d, std::uint64_t size_bytes);

} // namespace millrace::transport::verbs
