// The caller's tensors as one logical run of bytes, in order. Regions are made of these.
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
/// Byte k of the list is byte k of the tensors written densely, row-major, one after the other: strides are
/// resolved while copying, so a strided tensor needs no staging. Tensors may lie in memory of devices, each in that
/// of another one; only `copy_in_batch` touches those.
/// Threads: immutable once made; any thread may copy disjoint ranges.
class gather_list {
public:
  gather_list() = default;

  /// Errors: `invalid_argument` for a view that does not validate, and, if the memory is to be written,
  /// for one whose elements overlap (a stride of zero, say).
  static result<gather_list> of(const std::vector<tensor_view>& views, access_mode how);

  std::uint64_t size_bytes() const noexcept { return size_bytes_; }

  /// Those in whose memory some of it lies, each once.
  const std::vector<std::shared_ptr<device_memory>>& devices() const noexcept { return devices_; }
  bool on_host() const noexcept { return devices_.empty(); }

  /// Where `[offset, offset + length)` lies if it is dense host memory of one tensor, else null.
  std::byte* dense_at(std::uint64_t offset, std::uint64_t length) const noexcept;

  /// For lists on the host. Lists the dense runs that make up `[offset, offset + length)`, in order, as many as `out`
  /// takes. The range must lie inside.
  struct listed_runs {
    std::size_t count = 0;
    std::uint64_t size_bytes = 0; // that they cover
  };
  listed_runs runs(std::uint64_t offset, std::uint64_t length, std::span<iovec> out) const;

  /// A run of bytes that lie next to each other in memory, too.
  struct dense_range {
    std::uint64_t offset = 0; // in the list
    std::byte* data = nullptr;
    std::uint64_t length = 0;
    device_memory* device = nullptr; // null: the host's
  };
  /// All of the list as such runs, in order; tensors that touch share one. Nothing if a tensor is strided.
  std::optional<std::vector<dense_range>> dense_ranges() const;

  /// For lists on the host. Copies `[offset, offset + length)` of the list to `target`. The range must lie inside.
  void read(std::uint64_t offset, std::byte* target, std::uint64_t length, store_mode mode) const;

  /// For lists on the host. Copies `length` bytes from `source` to `[offset, ...)` of the list.
  void write(
    std::uint64_t offset, const std::byte* source, std::uint64_t length, store_mode mode) const;

  /// Adds `[offset, offset + length)` to what is copied with `host`, wherever the memory lies. The batch must end
  /// before the list.
  void copy_in_batch(
    device_batch& batch, std::uint64_t offset, std::byte* host, std::uint64_t length) const;

private:
  struct dimension {
    std::uint64_t count;
    std::int64_t stride_bytes;
  };
  /// One tensor: `runs` of `run_bytes` dense bytes, placed by the outer dimensions.
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
