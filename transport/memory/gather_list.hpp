// The caller's tensors as one logical run of bytes, in the order given.
// Regions are made of these; movers and drivers copy from and to them.
#pragma once

#include <millrace/core/bulk_handle.hpp>
#include <millrace/core/tensor_view.hpp>
#include <millrace/transport/copy/copy.hpp>
#include <millrace/transport/memory/device_memory.hpp>

#include <sys/uio.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace millrace::transport {

/// Maps logical offsets to dense or strided memory.
///
/// Byte k of the list is byte k of the tensors written densely, row-major, one after the other.
/// Strides are resolved while copying, so a strided tensor needs no staging. Tensors may lie in
/// device memory, each on another device; only `copy_in_batch` touches those.
/// Threads: immutable once made; any thread may copy disjoint ranges.
class gather_list {
public:
  gather_list() = default;

  /// Makes a list of these views.
  /// Errors:  `invalid_argument` for an invalid view, and, if the memory is to be written, for a
  ///          view whose elements overlap (a stride of zero, for example).
  static result<gather_list> of(const std::vector<tensor_view>& views, access_mode how);

  std::uint64_t size_bytes() const noexcept { return size_bytes_; }

  /// Returns the devices in whose memory a part of the list lies, each once.
  const std::vector<std::shared_ptr<device_memory>>& devices() const noexcept { return devices_; }
  bool on_host() const noexcept { return devices_.empty(); }

  /// Returns the address of `[offset, offset + length)` if the range is dense host memory of one
  /// tensor, else null.
  std::byte* dense_at(std::uint64_t offset, std::uint64_t length) const noexcept;

  /// The result of `runs`.
  struct listed_runs {
    std::size_t count = 0;
    std::uint64_t size_bytes = 0; // bytes that they cover
  };
  /// Lists the dense runs that make up `[offset, offset + length)`, in order, as many as fit in
  /// `out`. For lists on the host. The range must lie inside the list.
  listed_runs runs(std::uint64_t offset, std::uint64_t length, std::span<iovec> out) const;

  /// A range of the list whose bytes are dense in memory, too.
  struct dense_range {
    std::uint64_t offset = 0; // in the list
    std::byte* data = nullptr;
    std::uint64_t length = 0;
    device_memory* device = nullptr; // null: host memory
  };
  /// Returns the whole list as such ranges, in order. Tensors that touch in memory share one.
  /// Nothing if a tensor is strided.
  std::optional<std::vector<dense_range>> dense_ranges() const;

  /// Copies `[offset, offset + length)` of the list to `target`. For lists on the host. The range
  /// must lie inside the list.
  void read(std::uint64_t offset, std::byte* target, std::uint64_t length, store_mode mode) const;

  /// Copies `length` bytes from `source` to `[offset, ...)` of the list. For lists on the host.
  void write(
    std::uint64_t offset, const std::byte* source, std::uint64_t length, store_mode mode) const;

  /// Adds the copy between `[offset, offset + length)` and `host` to the batch, wherever the memory
  /// lies. The batch must end before the list.
  void copy_in_batch(
    device_batch& batch, std::uint64_t offset, std::byte* host, std::uint64_t length) const;

private:
  struct dimension {
    std::uint64_t count;
    std::int64_t stride_bytes;
  };
  /// One tensor: runs of `run_bytes` dense bytes, placed by the outer dimensions.
  struct item {
    std::uint64_t first = 0; // logical offset
    std::uint64_t size_bytes = 0;
    std::byte* data = nullptr;
    std::uint64_t run_bytes = 0;
    std::vector<dimension> outer;    // empty when dense
    device_memory* device = nullptr; // kept by `devices_`
  };

  static result<item> item_of(const tensor_view& view, access_mode how);
  std::size_t find(std::uint64_t offset) const noexcept;
  static std::byte* run_at(const item& x, std::uint64_t inside) noexcept;
  void place(item& x);
  template <class F>
  void for_runs(std::uint64_t offset, std::uint64_t length, F use) const;

  std::vector<item> items_;
  std::vector<std::shared_ptr<device_memory>> devices_;
  std::uint64_t size_bytes_ = 0;
};

} // namespace millrace::transport
